"""Rounds that are planned and finished without training: what a planner makes of a stream, a registry and a log."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from common.definition.gate import Gate
from common.definition.inputs import INPUTS_PATH
from common.eventlog.sourced_log import SourcedLog
from common.eventlog.tfrecord import cut
from common.process.health import Health
from common.registry.catalog import ChangeKind, RoundPlan, VersionDraft
from common.registry.client import RegistryClient, manifest_of
from common.schema import Schema
from common.statistics.examples import of_examples
from common.statistics.sketches import to_document
from services.trainer.plan.planner import Planner
from services.trainer.settings import TrainerSettings
from services.trainer.tests.support.platform_processes import MODEL, SCHEMA, STREAM, Events, definition
from testing.saved_models import saved_model

NO_FILES: Mapping[str, bytes] = {}
INPUTS = {f"saved_model/{INPUTS_PATH}": json.dumps({"serving_default": {"features": SCHEMA["features"]}}).encode()}
RULE = "{min_value: 0.5, max_regression: null, on_reject: %s}"


class Plans:
    """A planner that follows the registry and the log of the test; `begin` puts a new one in its place."""

    def __init__(
        self, registry: RegistryClient, events: Events, directory: Path, *, model: str = MODEL, stream: str = STREAM
    ) -> None:
        self.registry, self.events, self._directory = registry, events, directory
        self.model, self.stream = model, stream
        self.begin()

    def begin(self, clock: Callable[[], float] = time.time, registry: RegistryClient | None = None) -> Planner:
        settings = TrainerSettings(event_log=f"segments:{self._directory / 'log'}")
        self.planner = Planner(
            settings, registry=registry or self.registry, log=SourcedLog(self.events.log, settings.event_log),
            on_planned=lambda: None, health=Health("registry", "event_log"), clock=clock,
        )  # fmt: skip
        return self.planner

    def use(self, *, triggers: str, on_reject: str = "retry", evaluation: str = "{}") -> None:
        self.register(self.definition(triggers=triggers, gate=RULE % on_reject, evaluation=evaluation))

    def definition(self, *, model: str = "", stream: str = "", **sections: Any) -> bytes:
        """Of this model on this stream, or of another."""
        text = definition(**sections).replace(f"name: {MODEL}\n".encode(), f"name: {model or self.model}\n".encode())
        return text.replace(f"stream: {STREAM}\n".encode(), f"stream: {stream or self.stream}\n".encode())

    def register(self, text: bytes, *, model: str = "", stream: str = "") -> None:
        name, stream = model or self.model, stream or self.stream
        self.registry.register_model(name, stream=stream, files={"model.yaml": text}, by="test")

    def ask(self, **more: Any) -> RoundPlan:
        return self.planner.plan_now(self.model, by="ada", reason="", **more).plan

    def look_again(self) -> None:
        look_again(self.planner)

    def next(self) -> RoundPlan:
        """The plan that comes of looking again."""
        before = len(self.registry.list_rounds(self.model))
        self.look_again()
        rounds = self.registry.list_rounds(self.model)
        assert len(rounds) == before + 1, f"nothing was planned: {self.planner.status()}"
        return rounds[0].plan

    def assert_none(self) -> None:
        """Nothing comes of looking again."""
        before = self.registry.list_rounds(self.model)
        self.look_again()
        assert self.registry.list_rounds(self.model) == before

    def round(self, count: int = 10, *, auc: float = 0.9, held_out: int = 0) -> RoundPlan:
        """Of so many new events: planned and finished."""
        self.events.add(count)
        plan = self.next()
        self.finish(auc=auc, held_out=held_out)
        return plan

    def waits_for(self) -> str:
        return str(self.planner.status()[0]["next_round"]["waiting_for"])

    def statistics(self) -> Mapping[str, bytes]:
        """The files of a version that has learned the first four records."""
        learned = [one for record in self.events.log.read(self.events.topic, 0, 0, 4) for one in cut(record.value)[0]]
        found = to_document(of_examples(learned, Schema.from_mapping(SCHEMA)))
        return {**INPUTS, "statistics/round.json": json.dumps(found).encode()}

    def finish(self, **how: Any) -> None:
        finish(self.registry, self._directory, **how)


def look_again(planner: Planner) -> None:
    """One turn, everything read again."""
    planner.mark_stale(ChangeKind.RESET, "")
    planner.turn()


def finish(
    registry: RegistryClient,
    directory: Path,
    *,
    auc: float = 0.9,
    files: Mapping[str, bytes] = NO_FILES,
    held_out: float = 0,
    unusable: float = 0,
    models: Sequence[str] = (),
) -> None:
    """Leases a planned round and registers a version with this AUC and more files; the gate wants 0.5. Nothing where
    none of these models has a round.

    Args:
        held_out: how many of the round's events, below 1 the share of them; so is unusable.
    """
    lease = registry.lease_round("test", ttl_seconds=30.0, models=models)
    if lease is None:
        assert models, "no round is planned"
        return
    mark = lease.round.round_id
    own = {"saved_model/saved_model.pb": saved_model(mark=mark), "checkpoint/weights": mark.encode()}
    for name, content in {**own, **files}.items():
        (directory / mark / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / mark / name).write_bytes(content)
    manifest = manifest_of(directory / mark)
    registry.upload(directory / mark, manifest)
    count = lease.round.plan.example_count
    kept, lost = (int(count * part if part < 1 else part) for part in (held_out, unusable))
    draft = VersionDraft(
        weights_digest="0" * 64, metrics={"candidate": {"auc": auc}, "parent": {"auc": 0.9}, "progressive": {}},
        gate=Gate(metric="auc", min_value=0.5), files=manifest, step=1, timings={}, environment={},
        events_trained=count - kept - lost, events_held_out=kept, events_unusable=lost,
    )  # fmt: skip
    registry.register_version(lease, draft)
