"""A SavedModel that was made elsewhere, made to answer as a model of a definition does, so that both can be compared.

Its signature takes the stream's features by their names. What it gives is found by name:

| task                          | output                                                          |
|-------------------------------|-----------------------------------------------------------------|
| binary                        | logits, or probability [n]                                      |
| multiclass, multilabel        | logits, or probabilities [n, k]                                 |
| count                         | log_rate, or prediction [n], the rate                           |
| regression, vector_regression,| prediction                                                      |
| ranking                       |                                                                 |
| quantiles                     | quantiles [n, levels]                                           |
| embedding                     | embedding                                                       |

Of several heads each is called <head>/<output>. With one head and one output, the output is that head's, of any name.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from common.counted import counted
from common.definition.losses import Task
from common.definition.model import Definition
from common.errors import InvalidInput
from common.saved_model.layout import check_folder
from common.schema import Schema
from services.trainer.families.heads import BuiltHead
from services.trainer.families.port import Answering, Columns, Outputs, OwnEvaluation, ScoreFunction
from services.trainer.families.reasons import describe
from services.trainer.features.parsing import Raw
from services.trainer.features.transform import Transformed

Values = NDArray[np.float32]
Heads = tuple[BuiltHead, ...]
OUTPUT_NAMES: Mapping[Task, tuple[str, ...]] = {
    "binary": ("logits", "probability"),
    "multiclass": ("logits", "probabilities"),
    "multilabel": ("logits", "probabilities"),
    "count": ("log_rate", "prediction"),
    "regression": ("prediction",),
    "ranking": ("prediction",),
    "vector_regression": ("prediction",),
    "quantiles": ("quantiles",),
    "embedding": ("embedding",),
}
"""The last of each is what an output without such a name is taken for."""


class ExternalModel:
    """Answering, by the SavedModel in `directory`.

    Args:
        heads: what it answers.
        like: the model whose own metrics it is measured by; None: by none of a definition's code.

    Raises:
        InvalidInput: it cannot be loaded, takes what is no feature of the stream, or gives no output for a head.
    """

    least = 1e-7
    """Of a probability or rate whose logarithm is taken."""

    def __init__(
        self,
        directory: Path,
        definition: Definition,
        schema: Schema,
        heads: Heads,
        like: Answering | None = None,
    ) -> None:
        check_folder(directory)
        self.definition, self.schema, self.heads = definition, schema, heads
        self.user_metrics = like.user_metrics if like else None
        self.compiled_metrics = like.compiled_metrics if like else lambda: None
        try:
            self._loaded: Any = tf.saved_model.load(str(directory))
        except (OSError, ValueError, tf.errors.OpError) as error:
            raise InvalidInput(f"the SavedModel cannot be loaded: {describe(error)}") from error
        self._call: Any = self._signature_of(self._loaded.signatures)
        self._takes: Mapping[str, tf.TensorSpec] = self._call.structured_input_signature[1]
        known = self._known()
        if strange := sorted(self._takes.keys() - known):
            raise InvalidInput(
                f"the SavedModel takes {', '.join(strange)}, no feature of the stream; to be judged on its events it "
                f"takes some of {', '.join(sorted(known))}"
            )
        self._outputs = {head.name: self._output_of(head) for head in self.heads}

    def _signature_of(self, signatures: Mapping[str, Any]) -> Any:
        if "serving_default" in signatures:
            return signatures["serving_default"]
        if len(signatures) == 1:
            return next(iter(signatures.values()))
        raise InvalidInput(f"the SavedModel has no serving_default; its signatures: {', '.join(sorted(signatures))}")

    def _known(self) -> set[str]:
        """What it may take."""
        return {feature.name for feature in self.schema.features}

    @property
    def inputs(self) -> tuple[Any, ...]:
        return tuple(feature for feature in self.schema.features if feature.name in self._takes)

    def own_evaluation(self) -> OwnEvaluation | None:
        """None: it would ask the module's own layers."""
        return None

    def transformed(self, raw: Raw) -> Transformed:
        """The raw features themselves; how they are transformed is the SavedModel's own affair."""
        return Transformed({name: raw[name] for name in self._takes}, {}, {})

    def scorer(self) -> ScoreFunction:
        return self._scores

    def _scores(self, columns: Columns, count: int) -> Outputs:
        if not count:
            return {head.name: np.zeros((0, *head.output_width), np.float32) for head in self.heads}
        try:
            answered = self._call(**{name: _fitted(columns[name], spec) for name, spec in self._takes.items()})
        except (ValueError, TypeError, tf.errors.OpError) as error:
            raise InvalidInput(f"the SavedModel does not answer the stream's events: {describe(error)}") from error
        return {head.name: self._of_head(head, answered, count) for head in self.heads}

    def _of_head(self, head: BuiltHead, answered: Mapping[str, tf.Tensor], count: int) -> Values:
        key, name = self._outputs[head.name]
        values = np.asarray(answered[key].numpy(), np.float32)
        if values.shape != (count, *head.output_width) and values.size == count * int(np.prod(head.output_width)):
            values = values.reshape(count, *head.output_width)
        if values.shape != (count, *head.output_width):
            raise InvalidInput(
                f"output {key} has shape {list(values.shape)} for {counted(count, 'event')}; head {head.name} "
                f"({head.task}) needs {[count, *head.output_width]}"
            )
        return _as_trained(head.task, name, key, values, least=self.least)

    def _output_of(self, head: BuiltHead) -> tuple[str, str]:
        """Its key in the answer, and the name in the table above that says what it is."""
        names = OUTPUT_NAMES.get(head.task)
        if names is None:
            raise InvalidInput(f"a model whose head is of task {head.task} cannot be compared with one made elsewhere")
        prefix = f"{head.name}/" if len(self.heads) > 1 else ""
        given = self._call.structured_outputs
        for name in names:
            if prefix + name in given:
                return prefix + name, name
        if not prefix and len(given) == 1:
            return next(iter(given)), names[-1]
        wanted = " or ".join(prefix + name for name in names)
        raise InvalidInput(f"the SavedModel gives {', '.join(sorted(given))}; head {head.name} needs {wanted}")


def _fitted(column: tf.Tensor, spec: tf.TensorSpec) -> tf.Tensor:
    """Numbers in the signature's type; [n] and [n, 1] for each other."""
    if column.dtype != spec.dtype:
        column = tf.cast(column, spec.dtype)
    if spec.shape.rank == 2 and column.shape.rank == 1:
        return column[:, tf.newaxis]
    if spec.shape.rank == 1 and column.shape.rank == 2 and column.shape[1] == 1:
        return column[:, 0]
    return column


def _as_trained(task: Task, name: str, key: str, values: Values, *, least: float) -> Values:
    """What a network of ours would have given (families/heads.py)."""
    if name in ("probability", "probabilities"):
        if not bool(((values >= 0.0) & (values <= 1.0)).all()):
            raise InvalidInput(
                f"output {key} is taken for probabilities and gives {values.min():g} to {values.max():g}; call it "
                f"logits where it is"
            )
        inner = np.clip(values, least, 1.0 - least)
        return np.log(inner) if task == "multiclass" else np.log(inner / (1.0 - inner))
    if task == "count" and name == "prediction":
        return np.log(np.maximum(values, least))
    return values
