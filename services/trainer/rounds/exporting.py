"""The export stage: a program is exported and tried once, later versions of it write their state beside its files.

What a program follows from is its key: definition, schema, code, libraries, devices, shapes of the state, and what
layers have adapted. The second version of a program is tried as the first is, so that constants show which code of
the user draws anew in each round; then one version in `trial_every`, by the round's id. An export of program and state
that does not answer as its model is made as a whole instead, and its program is forgotten.
"""

import hashlib
import json
import logging
import platform
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import tensorflow as tf

from common.errors import DataLoss
from common.saved_model.program import program_of
from services.trainer.export import saved_model as export
from services.trainer.export import state
from services.trainer.export.fresh_process import FreshProcess
from services.trainer.export.programs import Program, Programs
from services.trainer.families.port import Model
from services.trainer.families.reasons import DefinitionFailedError, blame_definition
from services.trainer.learn import adapters, checkpoint
from services.trainer.plan import lineage
from services.trainer.protocol.assignment import RoundAssignment

logger = logging.getLogger(__name__)
_PROGRAMS = ".programs"
"""Below the cache, beside the models, none of which may have this name."""


@dataclass(frozen=True)
class Exported:
    """Attributes:
    warnings: of the version, by what they are about.
    told: the lineage's `program`: its digest, whether it was exported for this version, whether this version was tried,
        and how fast it answered then, where the gate asks.
    """

    warnings: dict[str, str]
    entry: dict[str, Any]


@dataclass(frozen=True)
class Export:
    """What a version's export is made of and with.

    Attributes:
        fresh: tries it; None for a worker, which exports nothing.
        sample: serialized Examples of the round, for requests; without a sample no version is tried.
        add: writes what else belongs to the program, below the version's folder: libraries, and the graph's drawing.
    """

    assignment: RoundAssignment
    model: Model
    sample: list[bytes]
    fresh: FreshProcess | None
    add: Callable[[Path, Any], None]

    def write(self, output: Path) -> Exported:
        """saved_model/ below the version's folder. Raises DefinitionFailedError: it cannot be written, or does not
        answer as the model does."""
        current = state.state_of(self.model)
        key = self._key(current) if self.sample else ""
        programs = Programs(Path(self.assignment.cache_dir) / self.assignment.plan.model / _PROGRAMS)
        program = programs.find(key) if key else None
        if program is not None:
            try:
                return self._of_program(program, current, output)
            except (DefinitionFailedError, DataLoss) as error:
                logger.warning("a program is exported again", extra={"reason": str(error)})
                programs.drop(key)
                shutil.rmtree(output)
        with blame_definition(self._place, doing="writing the export"):
            answering = export.export(self.model, output / "saved_model")
        self.add(output, answering)
        warnings = self._tried(output, program_of(output / "saved_model") if key else "") if self.sample else {}
        entry: dict[str, Any] = {"exported": True, "tried": bool(self.sample), **self._measured()}
        if key and state.written_shapes(output / "saved_model") == state.shapes_of(current):
            entry = {"digest": programs.keep(key, output, warnings).digest, **entry}
        return Exported(warnings, entry)

    def _of_program(self, program: Program, current: state.State, output: Path) -> Exported:
        saved_model = output / "saved_model"
        program.copy_to(output)
        state.write(saved_model, current, program.object_graph)
        is_tried = not program.is_confirmed or self._is_due() or self._is_timed
        if is_tried:
            program.confirm(warnings := self._tried(output, program.digest))
        else:
            warnings = dict(program.warnings)
            names = set(program.signatures) - set(self.model.signatures())
            export.write_warmup_requests(self.model, saved_model, export.requests_of(self.model, self.sample, names))
        return Exported(warnings, {"digest": program.digest, "exported": False, "tried": is_tried, **self._measured()})

    def _tried(self, output: Path, program: str) -> dict[str, str]:
        assert self.fresh is not None, "a worker exports nothing"
        saved_model = output / "saved_model"
        trial = export.trial_of(self.model, self.sample)
        latency = self._latency if self._is_timed else None
        work_dir = Path(self.assignment.work_dir)
        warnings = export.check(saved_model, trial, self.fresh, work_dir, program=program, latency=latency)
        export.write_warmup_requests(self.model, saved_model, trial.requests)
        return warnings

    @property
    def _is_timed(self) -> bool:
        return self.model.definition.gate.max_p99_ms is not None

    @property
    def _latency(self) -> Path:
        return Path(self.assignment.work_dir) / "trial" / "latency"

    def _measured(self) -> dict[str, Any]:
        return {"latency": json.loads(self._latency.read_text())} if self._is_timed and self.sample else {}

    @property
    def _place(self) -> str:
        return self.model.definition.module or "the estimator"

    def _is_due(self) -> bool:
        drawn = hashlib.sha256(self.assignment.round.round_id.encode()).digest()
        return int.from_bytes(drawn[:8], "big") % self.assignment.trial_every == 0

    def _key(self, current: state.State) -> str:
        """Empty where no program is kept: the structure itself is learned."""
        constants = adapters.constants_of(self.model)
        if constants is None:
            return ""
        facts = [
            self.assignment.plan.definition_digest, self.model.schema.to_json(), _code_digest(), platform.machine(),
            sorted(device.device_type for device in tf.config.list_physical_devices()), state.shapes_of(current),
            checkpoint.weights_digest(constants),
        ]  # fmt: skip
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


Exporter = Callable[[Export, Path], Exported]
"""`Export.write`, or what stands for it in a test that does not look at exports."""


@cache
def _code_digest() -> str:
    return lineage.code_digest()
