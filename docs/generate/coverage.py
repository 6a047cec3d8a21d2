"""docs/internals/coverage.md: which test shows which capability.

The capabilities are lines of capabilities.tsv: id, group, what it is, and what is missing where something is. A line
that begins with a tab is a clause of the capability above it: what it says, and the tests that show it, each of which
carries the capability's mark, `@pytest.mark.covers("rec-example")`. A clause without a test is missing. A capability
without clauses is an error, and so is a test that names what nobody knows.
"""

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from docs.generate.markdown import bullet, page

_ROOT = Path(__file__).parents[2]
_TABLE = Path(__file__).with_name("capabilities.tsv")
_MARK = "pytest.mark.covers"
_GROUPS: Mapping[str, str] = {
    "G1": "Records, pipelines, files, features",
    "G2": "Ways to define a model",
    "G3": "Estimators and ways to train",
    "G4": "Losses, metrics, optimizers, initializers",
    "G5": "The training loop, hooks, checkpoints",
    "G6": "Distributed training",
    "G7": "Formats",
    "G8": "Serving",
    "G9": "Performance, visualisation, debugging",
    "G10": "Examples and neighbours",
}
_INTRODUCTION = """\
What TensorFlow's handbooks teach, as capabilities of this platform, and the tests that fail when one of them breaks.
*Works*: each clause names a test that shows it. *In part*: something is missing, as the line or a clause says.
*Open*: no test shows any of it."""


@dataclass(frozen=True)
class _Clause:
    text: str
    tests: tuple[str, ...]


@dataclass(frozen=True)
class _Capability:
    name: str
    group: str
    text: str
    missing: str
    tests: tuple[str, ...]
    clauses: tuple[_Clause, ...] = ()

    @property
    def state(self) -> str:
        is_whole = not self.missing and all(clause.tests for clause in self.clauses)
        return "open" if not self.tests else "works" if is_whole else "in part"


def document() -> str:
    """Raises SystemExit where a capability has no clause."""
    capabilities = _capabilities()
    if whole := [one.name for one in capabilities if not one.clauses]:
        raise SystemExit(f"docs: {_TABLE.name} has no clause of {', '.join(whole)}")
    parts = [_INTRODUCTION, _summary(capabilities)]
    for group, title in _GROUPS.items():
        lines = [_line(one) for one in capabilities if one.group == group]
        parts += [f"## {group}: {title}", "\n".join(lines)]
    return page("Coverage", __name__, *parts)


def _summary(capabilities: tuple[_Capability, ...]) -> str:
    def counted(group: str) -> str:
        states = [one.state for one in capabilities if one.group == group]
        counts = ", ".join(f"{states.count(state)} {state}" for state in ("works", "in part", "open"))
        return bullet(f"{group}: {counts}")

    return "\n".join(counted(group) for group in _GROUPS)


def _line(one: _Capability) -> str:
    missing = f" Missing: {one.missing}." if one.missing else ""
    clauses = [bullet(f"{clause.text}: {_named(clause.tests)}", indent="    ") for clause in one.clauses]
    return "\n".join([bullet(f"**{one.name}** ({one.state}): {one.text}.{missing}"), *clauses])


def _named(tests: tuple[str, ...]) -> str:
    return ", ".join(f"`{test}`" for test in tests) or "missing"


def _capabilities() -> tuple[_Capability, ...]:
    tests = _tests()
    found = list[_Capability]()
    for line in _TABLE.read_text().splitlines():
        if line.startswith("\t"):
            found[-1] = replace(found[-1], clauses=(*found[-1].clauses, _clause(line, found[-1])))
            continue
        name, group, text, *missing = line.split("\t")
        found.append(_Capability(name, group, text, "".join(missing), tuple(sorted(tests.pop(name, ())))))
    if tests:
        unknown = ", ".join(f"{name} ({min(where)})" for name, where in sorted(tests.items()))
        raise SystemExit(f"docs: tests cover what {_TABLE.name} does not have: {unknown}")
    return tuple(found)


def _clause(line: str, of: _Capability) -> _Clause:
    _, text, *named = line.split("\t")
    clause = _Clause(text, tuple(", ".join(named).split(", ")) if any(named) else ())
    if unknown := [test for test in clause.tests if test not in of.tests]:
        raise SystemExit(f"docs: {_TABLE.name}: {of.name}: no test {', '.join(unknown)} carries its mark")
    return clause


def _tests() -> dict[str, set[str]]:
    """By capability: the names of its tests, as file::test."""
    tests = dict[str, set[str]]()
    for folder in ("common", "services", "headrace", "e2e_tests", "examples", "docs"):
        for path in sorted((_ROOT / folder).rglob("*.py")):
            text = path.read_text()
            if _MARK not in text:
                continue
            module = ast.parse(text)
            every = [
                f"{path.stem}::{one.name}"
                for one in module.body
                if isinstance(one, ast.FunctionDef) and one.name.startswith("test_")
            ]
            for name, place in _marks(module, path.stem):
                tests.setdefault(name, set()).update(every if place == path.stem else [place])
    return tests


def _marks(node: ast.AST, place: str) -> Iterator[tuple[str, str]]:
    """Pairs of capability and test, or module, of all marks below a node."""
    for child in ast.iter_child_nodes(node):
        inner = f"{place}::{child.name}" if isinstance(child, ast.FunctionDef | ast.ClassDef) else place
        if isinstance(child, ast.Call) and ast.unparse(child.func) == _MARK:
            yield from ((str(ast.literal_eval(argument)), place) for argument in child.args)
        yield from _marks(child, inner)
