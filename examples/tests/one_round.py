"""An example's own events through ingest's codec, then its model in real rounds, in this process."""

import asyncio
import importlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
import yaml
from numpy.typing import NDArray

from common.registry.catalog import Stream
from common.schema import Schema
from services.ingest.codec.validation import Validator
from services.trainer.families.port import Model
from services.trainer.features.decoding import decoded
from services.trainer.features.parsing import parse
from services.trainer.protocol.messages import Done
from services.trainer.rounds.evaluating import BY_CHIEF, Evaluator
from services.trainer.rounds.exporting import Export, Exported
from services.trainer.rounds.kept import Kept
from services.trainer.rounds.one_round import Surroundings
from services.trainer.tests.support.small_rounds import Platform

EXAMPLES = Path(__file__).parents[1]


class KeepingPlatform(Platform):
    """Where it does not export, the model that the last round has trained stays, to be asked."""

    model: Model

    def around(self, evaluator: Evaluator = BY_CHIEF, kept: Kept | None = None) -> Surroundings:
        found = super().around(evaluator, kept)
        return found if self.exports else replace(found, exporter=self._keep)

    def _keep(self, export: Export, output: Path) -> Exported:
        self.model = export.model
        return Exported({}, {"exported": False, "tried": False})


@dataclass
class Learned:
    """Attributes:
    metrics: of the held-out slice.
    directory: of the version, below which checkpoint/ lies, and saved_model/ where it was exported.
    model: where it was not.
    """

    metrics: Mapping[str, float]
    directory: Path
    model: Model | None

    def answer(self, examples: Sequence[bytes]) -> dict[str, NDArray[Any]]:
        if self.model:
            signature = self.model.signatures()["serving_default"]
            raw = signature.given(parse(examples, self.model.schema.columns).raw)
            answers = signature.answer(decoded(raw, signature.inputs))
        else:
            signatures = tf.saved_model.load(str(self.directory / "saved_model")).signatures
            answers = signatures["serving_examples"](examples=tf.constant(list(examples)))
        return {name: value.numpy() for name, value in answers.items()}

    def arrays(self) -> dict[str, np.ndarray]:
        with np.load(self.directory / "checkpoint" / "weights.npz") as file:
            return {path: file[path] for path in file.files if path.startswith("model/")}


class Example:
    """Rounds of one example, each going on from the one before it."""

    def __init__(self, name: str, directory: Path) -> None:
        self.files = {path.name: path.read_bytes() for path in (EXAMPLES / name).glob("model.*")}
        self.stream = str(yaml.safe_load(self.files["model.yaml"])["stream"])
        described = yaml.safe_load((EXAMPLES / self.stream / "stream.yaml").read_text())
        described.pop("stream")
        self.platform = KeepingPlatform(directory, described)
        schema_json = Schema.from_mapping(described).to_json()
        self._validator = Validator(Stream(self.stream, 1, schema_json, 0.0), max_event_bytes=1 << 20)
        self._versions = 0

    def events(self, count: int, **options: Any) -> list[bytes]:
        """Of its replay, as ingest writes them: every one is taken."""
        replay = importlib.import_module(f"examples.{self.stream}.replay")
        events = json.loads(json.dumps(list(replay.events(count, **options))))
        checked = asyncio.run(self._validator.check_json(events, with_keys=False))
        assert not checked.rejected, checked.rejected[0].reason
        return checked.examples

    def learn(
        self, examples: Sequence[bytes], changes: Mapping[str, Any] | None = None, *, exports: bool = False
    ) -> Learned:
        """A round over these events. `changes` replace sections of model.yaml; one level of a mapping is merged.
        With `exports` it is the SavedModel that answers, which a process of its own has tried: for models whose code
        TensorFlow may not be able to write or run elsewhere."""
        self.platform.exports = exports
        definition = yaml.safe_load(self.files["model.yaml"])
        for key, value in (changes or {}).items():
            definition[key] = {**definition.get(key, {}), **value} if isinstance(value, Mapping) else value
        self.platform.append(examples, per_record=100)
        files = self.files | {"model.yaml": yaml.safe_dump(definition, sort_keys=False).encode()}
        lease = self.platform.lease(files, block_examples=10_000, parent_version=self._versions)
        ended = self.platform.train(lease)
        assert isinstance(ended, Done), ended
        self._versions += 1
        model = None if exports else self.platform.model
        draft = self.platform.registry.drafts[-1]
        directory = self.platform.directory / "cache" / "model" / str(self._versions)
        assert draft.events_unusable == 0
        return Learned(draft.metrics["candidate"], directory, model)
