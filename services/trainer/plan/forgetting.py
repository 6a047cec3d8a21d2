"""Undoing events: finds their places, has the registry keep them, and plans the round that starts from before them."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from common.errors import Conflict, InvalidInput
from common.eventlog.sourced_log import SourcedLog
from common.eventlog.tfrecord import cut_sound
from common.eventlog.topics import examples_topic
from common.examples.codec import ExampleCodec, varint
from common.registry.catalog import OffsetRange
from common.registry.client import RegistryClient
from common.registry.forgotten import Forgotten, Piece
from common.schema import Schema
from services.trainer.plan.chain import ModelState
from services.trainer.plan.planner import Planner
from services.trainer.plan.tracked import LogBounds

_MEASURED_ROUNDS = 20


class Forgetting:
    """May be called from any thread."""

    def __init__(self, registry: RegistryClient, log: SourcedLog, planner: Planner) -> None:
        self._registry, self._log, self._planner = registry, log, planner

    def forget(
        self, model: str, *, ranges: Iterable[OffsetRange] = (), key: tuple[str, str | int] | None = None, by: str,
        reason: str, dry_run: bool = False,
    ) -> dict[str, Any]:  # fmt: skip
        """Offsets, or every event so far whose feature has the value of `key`.

        Returns:
            The registry's document (services/registry/lifecycle/forgetting.py), and "events_again": how many are
            learned again, "rounds_again" and "seconds" (None while no round has been measured): how long that takes,
            "round_id" or "waits": why there is no round yet, "not_looked_at": {partition: offset before which the log
            keeps nothing}.

        Raises:
            InvalidInput: the stream has no such feature, no event has the value, or the log has no such offsets.
            Conflict: all of it is forgotten already, or a round is open.
        """
        state, log = self._planner.known(model)
        topic = examples_topic(state.model.stream)
        found = Forgotten(self._of_key(state, log, *key) if key else _of_offsets(ranges, log))
        if not found:
            raise InvalidInput("to forget needs offsets or a key")
        if not found.goes_beyond(state.forgotten):
            raise Conflict(f"{model} has forgotten these events already")
        both = Forgotten((*state.forgotten.pieces, *found.pieces))
        selection = {
            "pieces": found.as_json(),
            "examples": self._count(topic, log, both) - self._count(topic, log, state.forgotten),
        }
        document = dict(self._registry.forget(model, selection, by=by, reason=reason, dry_run=dry_run))
        document |= self._effort(state, log, both, {int(p): offset for p, offset in document["end_position"].items()})
        document["not_looked_at"] = {p: offset for p, offset in log.start.items() if offset}
        if not dry_run and document["head_version"] != document["was"]:
            document |= self._plan(model, by=by, reason=reason)
        return document

    def _plan(self, model: str, *, by: str, reason: str) -> dict[str, str]:
        try:
            return {"round_id": self._planner.plan_now(model, by=by, reason=reason).round_id}
        except Conflict as error:  # paused, or nothing is left to learn; the events stay forgotten
            return {"waits": error.message}

    def _of_key(self, state: ModelState, log: LogBounds, name: str, value: str | int) -> Iterator[Piece]:
        schema = Schema.from_json(self._registry.get_stream(state.model.stream).schema_json)
        feature = next((feature for feature in schema.features if feature.name == name), None)
        if feature is None or feature.dtype not in ("string", "int64") or feature.shape != ():
            raise InvalidInput(f"stream {state.model.stream} has no feature {name} that is a single string or int64")
        try:
            wanted: Any = int(value) if feature.dtype == "int64" else str(value).encode()
        except ValueError as error:
            raise InvalidInput(f"{name} is an int64, got {value!r}") from error
        needle = varint(wanted) if feature.dtype == "int64" else wanted
        codec, is_there, topic = ExampleCodec(schema), False, examples_topic(state.model.stream)
        for partition, start in sorted(log.start.items()):
            for record in self._log.read(topic, partition, start, log.end[partition]):
                if needle not in record.value:  # most records hold no such event, and need not be cut
                    continue
                sound = cut_sound(record.value)[0]
                rows = [row for row, example in sound.items() if _has(codec, example, name, wanted, needle)]
                if rows:
                    is_there = True
                    yield Piece(partition, record.offset, record.offset + 1, tuple(rows))
        if not is_there:
            raise InvalidInput(f"no event of stream {state.model.stream} that the log keeps has {name} {value!r}")

    def _count(self, topic: str, log: LogBounds, forgotten: Forgotten) -> int:
        """Events that are forgotten, as far as the log keeps them."""
        total = sum(len(piece.rows) for piece in forgotten.pieces)
        for piece in (piece for piece in forgotten.pieces if not piece.rows):
            begin = max(piece.from_offset, log.start[piece.partition])
            total += self._examples(topic, piece.partition, begin, piece.to_offset)
        return total

    def _examples(self, topic: str, partition: int, begin: int, end: int) -> int:
        records = self._log.scan(topic, partition, begin, end) if begin < end else ()
        return sum(record.headers.example_count for record in records)

    def _effort(
        self, state: ModelState, log: LogBounds, forgotten: Forgotten, begin: Mapping[int, int]
    ) -> dict[str, Any]:
        """The events that are learned again, and the time of as many events in the newest rounds, from plan to
        version."""
        topic, events = examples_topic(state.model.stream), 0
        if begin == {int(p): offset for p, offset in state.head_end.items()}:
            return {"events_again": 0, "rounds_again": 0, "seconds": 0.0}
        for partition, start in log.start.items():
            first, end = max(begin.get(partition, 0), start), log.end[partition]
            for record in self._log.scan(topic, partition, first, end) if first < end else ():
                count = record.headers.example_count
                events += count - len(forgotten.rows_of(partition, record.offset, count))
        made = {
            version.version: version.created_at
            for version in self._registry.list_versions(state.model.name, limit=_MEASURED_ROUNDS)
        }
        rounds = [round_ for round_ in state.rounds if round_.version in made and round_.plan.example_count]
        seconds = sum(made[round_.version] - round_.planned_at for round_ in rounds)
        learned = sum(round_.plan.example_count for round_ in rounds)
        return {
            "events_again": events,
            "rounds_again": -(-events // state.definition.triggers.max_round_examples),
            "seconds": events * seconds / learned if learned else None,
        }


def _of_offsets(ranges: Iterable[OffsetRange], log: LogBounds) -> Iterator[Piece]:
    for piece in ranges:
        end = log.end.get(piece.partition)
        if end is None or not piece.from_offset < piece.to_offset <= end:
            ends = ", ".join(f"{partition}: {end}" for partition, end in sorted(log.end.items()))
            raise InvalidInput(
                f"partition {piece.partition} has no records [{piece.from_offset}, {piece.to_offset}); "
                f"the log ends at {ends}"
            )
        yield Piece(piece.partition, piece.from_offset, piece.to_offset)


def _has(codec: ExampleCodec, example: bytes, name: str, wanted: str | int, needle: bytes) -> bool:
    if needle not in example:
        return False
    try:
        return list(codec.decode(example)[name]) == [wanted]
    except InvalidInput:
        return False
