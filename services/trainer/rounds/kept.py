"""What a round's process keeps for the next round of the same definition: its program, and the version that it made.

A round that begins with a kept program must end as with a new program. So all that a program holds is given
to it anew (program.py); where rows of an estimator's tables mean something else, it takes the initial values of a model
that is built for the round. Where neither can be, it is built and traced anew: a table that has outgrown its room, a
parent of another definition, Python values of a module that a round has changed (families/hidden_state.py).
"""

from dataclasses import dataclass, replace
from typing import Any

from common.facts import present
from common.registry.catalog import RoundPlan
from services.trainer.families.hidden_state import difference, generators, values_of
from services.trainer.features.statistics import Statistics
from services.trainer.learn.checkpoint import Checkpoint
from services.trainer.protocol.assignment import RoundAssignment
from services.trainer.rounds import window
from services.trainer.rounds.inputs import Parent, RoundInputs, fetch_definition, key_of, stored_version
from services.trainer.rounds.outside import RoundRegistry
from services.trainer.rounds.program import OTHER_ROWS, Program, initial

_FIRST = "first round of its process"
_MOST_BYTES = 256 * 1024 * 1024
"""Of a version that is kept in memory; a larger one is read again from the cache."""


class NotAsFreshError(Exception):
    """A round with a kept program may have done other than in a new process: take it again in a new process."""


@dataclass(frozen=True)
class _Own:
    """The program with what it is of."""

    key: tuple[object, ...]
    program: Program
    inputs: RoundInputs
    values: dict[str, str] | None


class Kept:
    """Attributes:
    cold_because: why the round that runs has a program that was built for it; empty where it has not.
    renewed_because: why the kept program began with initial values that were made for the round; empty where not.
    leaves_because: why the process takes no further round; empty where it may.
    held_out: what judges further rounds, of the same definition, schema and code.
    """

    def __init__(self, leaves_because: str = "") -> None:
        self.cold_because, self.renewed_because, self.leaves_because = _FIRST, "", leaves_because
        self.held_out = window.Kept()
        self._rounds = 0
        self._own: _Own | None = None
        self._made: tuple[int, Checkpoint] | None = None
        self._generators: object = None

    def facts(self) -> dict[str, Any]:
        """For the version's record."""
        return {
            "round": self._rounds + 1,
            "warm": not self.cold_because,
            **present(because=self.cold_because, renewed=self.renewed_because, leaves=self.leaves_because),
        }

    def inputs_of(self, assignment: RoundAssignment, registry: RoundRegistry, *, resumes: bool) -> RoundInputs | None:
        """Of a round that can begin with the kept program, as far as is known before its events are read."""
        self.renewed_because = ""
        if self._own is None or self.leaves_because:
            self.cold_because = self.cold_because or self.leaves_because
            return None
        plan, own = assignment.plan, self._own.inputs
        self.cold_because = _obstacle(plan, self._own.key, resumes=resumes)
        if self.cold_because:
            return None
        if self._made and self._made[0] == plan.parent_version:
            stored = self._made[1]
        else:
            version, stored = stored_version(registry, plan.model, plan.parent_version, assignment)
            if key_of(version) != key_of(plan):
                self.cold_because = "its parent is of another definition or schema"
                return None
        return replace(own, parent=Parent(own.definition, own.schema, own.module, stored, key_of(plan)))

    def program_for(
        self, inputs: RoundInputs, assignment: RoundAssignment, registry: RoundRegistry, statistics: Statistics
    ) -> Program | None:
        """The kept program, ready to be begun; None where it has to be built anew: `cold_because` then says why."""
        assert self._own is not None, "these inputs are of what is kept"
        assert inputs.parent is not None, "and so is their parent"
        program = self._own.program
        seed = assignment.plan.seed
        self.cold_because = program.take_up(inputs.parent, statistics, seed=seed)
        if self.cold_because == OTHER_ROWS and program.module is None:
            built = initial(inputs, statistics, assignment)
            if program.take_over(built, inputs.parent, statistics, seed=seed):
                self.cold_because, self.renewed_because = "", OTHER_ROWS
        if self.cold_because:
            return None
        if not program.take_parent(inputs.parent):
            module = fetch_definition(registry, assignment.plan.definition_digest, assignment.code_dir)[1]
            program.parent, program.has_parent_alike = replace(inputs.parent, module=module).built(), True
        return program

    def keep(self, program: Program, inputs: RoundInputs, plan: RoundPlan) -> None:
        """A program that was built for the round."""
        if self._own is None or self._own.key != _key_of(plan):
            self.held_out.stretches = []
        self._own, self._made = None, None
        self._own = _Own(_key_of(plan), program, replace(inputs, parent=None), _values_of(program))

    def begin(self) -> None:
        """The round's training begins."""
        self._generators = self._of_generators()

    def check(self) -> None:
        """The round has used all of the module's Python that it uses. Raises NotAsFreshError: it began with a kept
        program, and the module draws where a new process has another seed."""
        assert self._own is not None, "a round has a program"
        if self._own.program.module is None or self.leaves_because:
            return
        if self._of_generators() != self._generators:
            self.leaves_because = "its module draws from numpy's or Python's generator between steps"
            if not self.cold_because:
                raise NotAsFreshError(self.leaves_because)
        before, now = self._own.values, _values_of(self._own.program)
        if before is None or now is None:
            self.leaves_because = "its module holds more values than can be watched"
        elif changed := difference(before, now):
            self.leaves_because = f"its module keeps values from round to round: {changed}"

    def made(self, version: int, checkpoint: Checkpoint) -> None:
        self._rounds += 1
        size = sum(array.nbytes for array in checkpoint.arrays.values())
        self._made = (version, checkpoint) if size <= _MOST_BYTES else None

    def drop(self, reason: str) -> None:
        """The next attempt at this round builds its own."""
        self._own, self._made, self.cold_because = None, None, reason

    def _of_generators(self) -> object:
        assert self._own is not None, "a round has a program"
        return generators(makes_layers=self._own.program.model.makes_layers)


def _values_of(program: Program) -> dict[str, str] | None:
    return values_of(program.module.modules, program.model.network) if program.module else {}


def _obstacle(plan: RoundPlan, key: tuple[object, ...], *, resumes: bool) -> str:
    if resumes:
        return "it goes on from a resume point"
    if not plan.parent_version:
        return "it begins from nothing"
    return "" if key == _key_of(plan) else "it is of another definition, schema or code"


def _key_of(plan: RoundPlan) -> tuple[object, ...]:
    return plan.model, *key_of(plan), plan.code_digest
