"""A process beside a round's chief that scores its checkpoints while the chief trains on.

It is forked before TensorFlow runs an operation, builds the model and reads the held-out examples as the chief would,
and from then on takes in checkpoints and gives out metrics. It trains nothing and writes nothing; the chief alone puts
the scores where they belong. What it is asked: JSON {"path": a checkpoint's folder}; what it answers: {"metrics"} or
{"error"}. When it is gone, or takes too long, the chief scores what is due and everything after it by itself.
"""

import json
import logging
import os
import shutil
import signal
import socket
from collections import deque
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.definition.metrics import KINDS
from common.errors import HeadraceError
from common.eventlog.base import EventLog
from services.trainer import determinism
from services.trainer.families.heads import ByHead
from services.trainer.families.port import Model, Trainable, TrainingSet
from services.trainer.features.statistics import Statistics, to_arrays
from services.trainer.learn import adapters, checkpoint
from services.trainer.learn.checkpoint import Checkpoint
from services.trainer.learn.metrics.collected import Slices, measured_heads
from services.trainer.learn.scoring import scored
from services.trainer.parameters.peers import connected
from services.trainer.protocol.assignment import RoundAssignment
from services.trainer.rounds.blocks import RoundData
from services.trainer.rounds.inputs import data_of, fetch_inputs, log_of
from services.trainer.rounds.outside import RoundRegistry, registry_of
from services.trainer.rounds.prepared import PreparedBlock

MOST_EXAMPLES = 50_000
"""Of the range's beginning. This number shows a faulty model well enough, and memory holds it."""
logger = logging.getLogger(__name__)
_ANSWER_SECONDS = 120.0
"""For one checkpoint; the first also waits until the evaluator has built its model."""
_MOST_WAITING = 2
_PACKET_BYTES = 64 * 1024


class Validation:
    """Reads the range once more where it does not fit into memory. What a model answers now depends on its weights
    alone, so a round that is resumed or rebuilt measures the same."""

    def __init__(self, model: Model, data: RoundData) -> None:
        heads = measured_heads(model.heads, model.definition.evaluation.metrics)
        self._heads = [
            replace(head, metrics=tuple(metric for metric in head.wanted if not KINDS[metric.kind].needs_groups))
            for head in heads
        ]
        self._model, self._score = model, model.scorer()
        training = model.definition.training
        most = training.evaluate_steps * training.batch_size if training.evaluate_steps else None
        blocks = chain(data.judges(model), data.prepared(model))
        self._blocks = list(_first(blocks, MOST_EXAMPLES if most is None else most, is_exact=most is not None))

    def metrics(self, training: Trainable) -> dict[str, float]:
        """Of the weights that a version would be served with: their averages where the optimizer keeps them."""
        slices = Slices(
            self._heads, self._model.user_metrics, self._model.compiled_metrics(), are_named=len(self._heads) > 1
        )
        own = self._model.own_evaluation()
        with training.averaged():
            for examples in self._blocks:
                outputs, bad = scored(self._score, examples.columns, examples.count)
                kept = np.array([row for row in range(examples.count) if row not in bad], np.int64)
                slices.add(
                    _of_rows(examples.labels, kept),
                    {name: values[kept] for name, values in outputs.items()},
                    _of_rows(examples.weights, kept),
                )
                if own and not bad:
                    own.add(examples)
        return (own.result() if own else {}) | (slices.metrics() if slices.count else {})


def _of_rows(values: ByHead, rows: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
    return {name: value.numpy()[rows] for name, value in values.items()}


def _first(blocks: Iterator[PreparedBlock], most: int, *, is_exact: bool) -> Iterator[TrainingSet]:
    """The held-out examples of blocks, until there are as many; a block is taken whole unless the number is exact."""
    for block in blocks:
        if block.held_out.count:
            is_whole = not is_exact or block.held_out.count <= most
            yield block.held_out if is_whole else block.held_out.first(most)
            most -= block.held_out.count
        if most <= 0:
            return


class Evaluator:
    """The chief's side of it.

    Args:
        connection: of packets, to a process that a Scorer answers for; None: there is none.
        directory: where checkpoints lie until they are scored.
        pid: of the process, 0 where it is not to be ended.
    """

    def __init__(self, connection: socket.socket | None, directory: Path = Path(), *, pid: int = 0) -> None:
        self._connection, self._directory, self._pid = connection, directory, pid
        self._count = 0
        self.lost_because = ""

    @classmethod
    def of(cls, assignment: RoundAssignment) -> "Evaluator":
        """In a process of one thread that has run no operation; BY_CHIEF where this round has nothing for it to do.

        Where scores can end a round, the next step waits for them: the chief measures them itself.
        """
        section = assignment.training
        is_wanted = section.get("evaluate_every_steps") and not section.get("early_stopping")
        if assignment.evaluator != "process" or not is_wanted or assignment.rebuild_of:
            return BY_CHIEF
        ours, pid = connected(partial(_live, assignment))
        return cls(ours, Path(assignment.work_dir) / "to-evaluate", pid=pid)

    @property
    def is_there(self) -> bool:
        return self._connection is not None and not self.lost_because

    def submit(self, point: Checkpoint) -> Path:
        """Has it scored; the folder is there until it is removed."""
        assert self._connection is not None, "the chief has nobody to ask"
        path = self._directory / str(self._count)
        self._count += 1
        checkpoint.write(path, point)
        try:
            self._connection.settimeout(_ANSWER_SECONDS)
            self._connection.send(json.dumps({"path": str(path)}).encode())
        except OSError as error:
            self._lose(str(error))
        return path

    def answer(self) -> dict[str, float] | None:
        """To the oldest question; None: it is gone."""
        if self._connection is None or self.lost_because:
            return None
        try:
            packet = self._connection.recv(_PACKET_BYTES)
            answer: dict[str, Any] = json.loads(packet) if packet else {"error": "its process ended"}
        except (OSError, ValueError) as error:
            answer = {"error": str(error)}
        if "metrics" in answer:
            return {str(name): float(value) for name, value in answer["metrics"].items()}
        self._lose(answer["error"])
        return None

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        if self._pid:
            with suppress(ProcessLookupError, ChildProcessError):
                os.kill(self._pid, signal.SIGKILL)
                os.waitpid(self._pid, 0)

    def _lose(self, reason: str) -> None:
        self.lost_because = reason
        logger.warning("the chief evaluates from here on", extra={"reason": reason})


BY_CHIEF = Evaluator(None)


class Scores:
    """What a round's checkpoints are worth, by an evaluator or by the chief; the numbers are the same."""

    def __init__(self, training: Trainable, data: RoundData, statistics: Statistics, evaluator: Evaluator) -> None:
        self._training, self._data, self._statistics = training, data, to_arrays(statistics)
        self._evaluator = evaluator
        self._validation: Validation | None = None
        self._waiting = deque[tuple[Path, dict[str, float]]]()
        if not evaluator.is_there:
            self._own()

    def of_this_step(self) -> dict[str, float]:
        """Filled in by `settle` at the latest, where an evaluator measures them."""
        if not self._evaluator.is_there:
            return self._own().metrics(self._training)
        scores = dict[str, float]()
        arrays = {**self._training.captured(), **self._statistics}
        self._waiting.append((self._evaluator.submit(Checkpoint(arrays, {"step": self._training.step}, {})), scores))
        self.settle(most_waiting=_MOST_WAITING)
        return scores

    def settle(self, *, most_waiting: int = 0) -> None:
        """Waits until at most `most_waiting` scores are still to come; none, once the evaluator is gone."""
        while len(self._waiting) > (most_waiting if self._evaluator.is_there else 0):
            path, scores = self._waiting[0]
            answer = self._evaluator.answer()
            scores |= self._of_earlier(path) if answer is None else answer
            self._waiting.popleft()
            shutil.rmtree(path, ignore_errors=True)

    def facts(self) -> dict[str, str]:
        """For the version's record."""
        if self._evaluator is BY_CHIEF:
            return {"evaluated_by": "chief"}
        lost = self._evaluator.lost_because
        return {"evaluated_by": f"evaluator, then chief: {lost}" if lost else "evaluator"}

    def _of_earlier(self, path: Path) -> dict[str, float]:
        """The chief goes back to a checkpoint, and to where it was."""
        here = self._training.captured()
        self._training.restore(checkpoint.read(path).arrays)
        try:
            return self._own().metrics(self._training)
        finally:
            self._training.restore(here)

    def _own(self) -> Validation:
        self._validation = self._validation or Validation(self._training.model, self._data)
        return self._validation


class Scorer:
    """The evaluator's side: a model like the chief's, made when the first checkpoint comes."""

    def __init__(self, assignment: RoundAssignment, registry: RoundRegistry, log: EventLog) -> None:
        self._assignment, self._registry, self._log = assignment, registry, log
        self._built: tuple[Trainable, Validation] | None = None

    def answer(self, question: bytes) -> bytes:
        try:
            point = checkpoint.read(Path(json.loads(question)["path"]))
            self._built = self._built or self._build(point)
            training, validation = self._built
            training.restore(point.arrays)
            return json.dumps({"metrics": validation.metrics(training)}).encode()
        except HeadraceError as error:
            return json.dumps({"error": error.message}).encode()

    def _build(self, point: Checkpoint) -> tuple[Trainable, Validation]:
        """From the checkpoint's statistics."""
        work_dir = Path(self._assignment.work_dir) / "evaluator"
        work_dir.mkdir(parents=True, exist_ok=True)
        inputs = fetch_inputs(self._assignment, self._registry, work_dir)
        seed, data = self._assignment.plan.seed, data_of(self._assignment, inputs, self._log)
        model = adapters.build(inputs.definition, inputs.schema, point.statistics, inputs.module, seed=seed)
        model.fit(point.arrays, lambda: (block.trained.columns for block in data.prepared(model)))
        return adapters.trainable_of(model, seed=seed), Validation(model, data)


def _live(assignment: RoundAssignment, connection: socket.socket) -> None:
    determinism.configure(intra_op_threads=assignment.intra_op_threads, inter_op_threads=assignment.inter_op_threads)
    registry = registry_of(assignment)
    with closing(registry), closing(log_of(assignment, registry)) as log:
        scorer = Scorer(assignment, registry, log)
        while packet := connection.recv(_PACKET_BYTES):
            connection.send(scorer.answer(packet))
