"""A version as TensorFlow's own object, in this process. The only place of headrace that needs TensorFlow."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from common.definition.inputs import INPUTS_PATH, SignatureInputs, parse_inputs
from common.errors import InvalidInput, NotFound
from common.examples.naming import name_of_alias
from common.saved_model.graph import MODEL_FILE, read, tagged
from common.schema import Schema
from common.suggestions import did_you_mean
from headrace.client.prediction_types import Prediction
from headrace.client.tensor_values import SignatureTypes, as_input
from headrace.files.row_files import Wanted, values_of_frame
from protos.tfserving_pb2 import DataType

_SIGNATURE = "serving_default"


def load(directory: Path, files: Sequence[Path]) -> Any:
    """What a version's files, in the directory, hold: the Keras model of the one `*.keras`, else the SavedModel. Raises
    InvalidInput: TensorFlow is not installed, or the files hold neither."""
    try:
        import tensorflow as tf
    except ImportError as error:
        raise InvalidInput("load_model needs TensorFlow: pip install tensorflow-cpu") from error
    found = [path for path in files if path.suffix == ".keras"]
    if len(found) == 1:
        return tf.keras.models.load_model(found[0], compile=False)
    if directory / "saved_model" / "saved_model.pb" not in files:
        raise InvalidInput(f"{directory} holds no saved_model/saved_model.pb, and {len(found)} Keras files, not one")
    return tf.saved_model.load(str(directory / "saved_model"))


def load_as_keras(directory: Path, files: Sequence[Path]) -> Any:
    """What `load` gives as a Keras model: itself where it is a Keras model, else a model that calls the SavedModel's
    serving_default, from inputs to outputs, by name. Its `predict` takes a DataFrame, too. It has no weights to train;
    `signatures` has the others. Raises as `load`.
    """
    import tensorflow as tf

    loaded = load(directory, files)
    if isinstance(loaded, tf.keras.Model):
        return loaded

    class Served(tf.keras.layers.Layer):  # type: ignore[misc]  # TensorFlow has no types
        def call(self, inputs: Any) -> Any:
            return called(**inputs)  # which holds the whole, whose variables live as long as it does

    class Version(tf.keras.Model):  # type: ignore[misc]  # TensorFlow has no types
        @property
        def signatures(self) -> Any:
            return loaded.signatures

        def predict(self, x: Any, *arguments: Any, **options: Any) -> Any:
            columns = columns_of(x, wanted, declared) if hasattr(x, "to_dict") else x
            if isinstance(columns, dict):  # Keras takes strings as tensors only
                columns = {name: tf.constant(values) for name, values in columns.items()}
            return super().predict(columns, *arguments, **options)

    called = _Called(loaded, _SIGNATURE, directory)
    wanted = called.specs
    declared = _declared(directory / "saved_model" / INPUTS_PATH)
    inputs = {
        name: tf.keras.Input(shape=spec.shape[1:], dtype=spec.dtype.name, name=name) for name, spec in wanted.items()
    }
    return Version(inputs, Served(name="served", autocast=False)(inputs))


class LoadedVersion:
    """Answers in this process as a client of serving does: a version that no replica has loaded, too.

    Raises as `load`.
    """

    def __init__(self, directory: Path, files: Sequence[Path], version: int) -> None:
        self._loaded, self._version, self._directory = load(directory, files), version, directory
        self._called = dict[str, _Called]()
        if not hasattr(self._loaded, "signatures"):
            raise InvalidInput(f"version {version} is a Keras file, which has no signatures to ask")
        declared = _declared(directory / "saved_model" / INPUTS_PATH)
        features = declared.features if declared else ()
        self._names = (name_of_alias(features), frozenset(feature.name for feature in features if feature.yes_no))

    def signature(self, model: str, name: str = "", *, version: int | None = None, label: str | None = None) -> Any:
        """SignatureTypes. Raises NotFound: there is none of the name."""
        function = self._function(name)
        types = [
            {key: DataType.Name(spec.dtype.as_datatype_enum) for key, spec in specs.items()}
            for specs in (function.specs, function.outputs)
        ]
        return SignatureTypes(types[0], types[1], name_of=self._names[0], yes_no=self._names[1])

    def predict(
        self, model: str, inputs: Any = None, *, rows: Any = None, signature_name: str = "",
        version: int | None = None, label: str | None = None, output_filter: Sequence[str] = (),
    ) -> Prediction:  # fmt: skip
        """Raises InvalidInput: an input does not fit, or there is no such output."""
        import tensorflow as tf

        types = self.signature(model, signature_name)
        if unknown := [name for name in output_filter if name not in types.outputs]:
            raise InvalidInput(
                f"there is no output {unknown[0]!r}: {', '.join(types.outputs)}{did_you_mean(unknown, types.outputs)}"
            )
        given = _columns(rows, types.inputs) if rows is not None else inputs
        if not isinstance(given, dict):
            given = {next(iter(types.inputs)): given}
        arrays = {name: as_input(name, value, types.inputs.get(name)) for name, value in given.items()}
        try:
            found = self._function(signature_name)(**{name: tf.constant(value) for name, value in arrays.items()})
        except (TypeError, tf.errors.InvalidArgumentError) as error:
            raise InvalidInput(
                f"the version does not take these inputs: {' '.join(str(error).split())[:300]}"
            ) from error
        outputs = {name: value.numpy() for name, value in found.items() if not output_filter or name in output_filter}
        return Prediction(outputs, self._version)

    def _function(self, name: str) -> "_Called":
        known = self._loaded.signatures
        if (name or _SIGNATURE) not in known:
            raise NotFound(f"there is no signature {name!r}: {', '.join(known)}{did_you_mean([name], list(known))}")
        if name not in self._called:
            self._called[name] = _Called(self._loaded, name or _SIGNATURE, self._directory)
        return self._called[name]


class _Called:
    """A signature by the names that servers see. What Python cannot call an argument, such as `class`, the graph calls
    otherwise: `<signature>_<argument>:0` is the tensor of such an input."""

    def __init__(self, loaded: Any, signature: str, directory: Path) -> None:
        self._loaded, self._function = loaded, loaded.signatures[signature]
        arguments = self._function.structured_input_signature[1]
        graph = tagged(read((directory / "saved_model" / MODEL_FILE).read_bytes()))
        tensors = {name: info.name.partition(":")[0] for name, info in graph.signature_def[signature].inputs.items()}
        self._argument_of = {
            name: name if name in arguments else tensor.removeprefix(f"{signature}_")
            for name, tensor in tensors.items()
        }
        self.specs = {name: arguments[argument] for name, argument in self._argument_of.items()}
        self.outputs = self._function.structured_outputs

    def __call__(self, **inputs: Any) -> Any:
        return self._function(**{self._argument_of.get(name, name): value for name, value in inputs.items()})


def _columns(rows: Sequence[Mapping[str, Any]], names: Mapping[str, str]) -> dict[str, list[Any]]:
    """By input. Raises InvalidInput: a row lacks an input, or has an unknown input."""
    for number, row in enumerate(rows, 1):
        if wrong := sorted(row.keys() ^ names.keys()):
            fault = f"has the unknown input {wrong[0]!r}" if wrong[0] in row else f"has no {wrong[0]}"
            raise InvalidInput(f"row {number} {fault}; the signature has the inputs {', '.join(names)}")
    return {name: [row[name] for row in rows] for name in names}


def columns_of(frame: Any, specs: Any, declared: SignatureInputs | None) -> dict[str, Any]:
    """A DataFrame's rows as arrays by input, as serving would read them: by name or alias, defaults filled in, lists of
    any length filled up.

    Args:
        specs: {input: tf.TensorSpec}.

    Raises:
        InvalidInput: a row does not fit; says which.
    """
    types = {name: DataType.Name(spec.dtype.as_datatype_enum) for name, spec in specs.items()}
    schema = Schema(declared.features, ()) if declared else None
    rows = values_of_frame(frame, Wanted(types, schema))
    if not rows:
        raise InvalidInput("the frame has no rows")
    padding = declared.padding if declared else {}
    columns = {}
    for name, spec in specs.items():
        values = [row[name] for row in rows]
        if spec.shape.rank is not None and spec.shape.rank > 1 and spec.shape[1] is None:
            longest = max(map(len, values))
            values = [[*value, *[padding.get(name, 0)] * (longest - len(value))] for value in values]
        columns[name] = as_input(name, values, types[name])
    return columns


def _declared(path: Path) -> SignatureInputs | None:
    """What the stream's schema says of the inputs, where it came with the version."""
    return parse_inputs(orjson.loads(path.read_bytes())).get(_SIGNATURE) if path.is_file() else None
