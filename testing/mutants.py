"""How much the tests notice: `python -m testing.mutants --seed 1 --keep build/mutants common:60 services/registry:45`.

Draws mutants of the product code below each folder by seed, the same after an edit elsewhere: a comparison, operator,
number, truth value, condition or call is changed. A copy of the tracked files has all of them, each behind a switch,
and its tests run twice: once with every switch off, to see which tests come to which switch, in any process; then
for each mutant the quickest of the tests that reach it, those of its own module and service first, until one fails. A
failure counts where the same test passes without the mutant. Every run is a fork of a process that has collected.

`--keep` has a line for each test and for each verdict. A command that is ended, or ends after --at-most-seconds, goes
on where it was; several may work for one folder at once, each with its own copy. `--report` prints the table and lists
what is not caught. A mutant that changes nothing visible survives.
"""

import argparse
import ast
import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

_SWAPS = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.Div: ast.Mult,
}  # fmt: skip
_STATEMENTS = (ast.Expr, ast.Assign, ast.AugAssign, ast.Return, ast.If, ast.While, ast.Raise)
_TESTS = ("common", "headrace", "services")
KEEP = "MUTANTS_KEEP"
UNTIL = "MUTANTS_UNTIL"
_SWITCHES = """
try:
    from mutants_switches import MUTANTS as _MUTANTS
except ImportError:
    _MUTANTS = ()
"""
_SWITCHES_MODULE = """
import mmap, os, sys
with open({path!r}, "r+b") as _file:
    _memory = mmap.mmap(_file.fileno(), 0)
_server = os.getpid() if sys.argv[0].endswith("warm_python/server.py") else 0  # what it imports serves every mutant
class _Mutants:
    def __contains__(self, number):
        _memory[number] = 1
        return _memory[{count} + number] == 1 and os.getpid() != _server
MUTANTS = _Mutants()
"""


@dataclass(frozen=True, kw_only=True)
class Mutant:
    room: str
    path: str
    line: int
    change: str
    key: str
    """The same after an edit elsewhere in the file."""
    begin: int
    end: int
    text: str
    """Stands for the bytes from `begin` to `end`; `{}` is for the number of the switch."""


def changed(node: ast.AST) -> ast.AST | None:
    """The node with its meaning changed; None where this sampler has no change for it."""
    match node:
        case ast.Compare(left, [operator], right) if type(operator) in _SWAPS:
            return ast.Compare(left, [_SWAPS[type(operator)]()], right)  # type: ignore[list-item]  # keys and values pair
        case ast.BoolOp(operator, values):
            return ast.BoolOp(_SWAPS[type(operator)](), values)  # type: ignore[arg-type]  # keys and values pair
        case ast.BinOp(left, operator, right) if type(operator) in _SWAPS:
            return ast.BinOp(left, _SWAPS[type(operator)](), right)  # type: ignore[arg-type]  # keys and values pair
        case ast.UnaryOp(ast.Not(), operand):
            return operand
        case ast.Constant(bool(value)):
            return ast.Constant(not value)
        case ast.Constant(int(value) | float(value)):
            return ast.Constant(value + 1)
        case ast.IfExp(test, body, orelse):
            return ast.IfExp(test, orelse, body)
        case ast.Expr(ast.Call()):
            return ast.Pass()
    return None


@dataclass(frozen=True, kw_only=True)
class _Place:
    """Where a mutant may stand: a node of a module's functions, by its bytes."""

    path: str
    key: str
    node: ast.expr | ast.stmt
    other: ast.AST
    begin: int
    end: int
    old: str

    def mutant(self, room: str) -> Mutant | None:
        """None within a format string, whose parts have no place of their own."""
        try:
            is_here = ast.dump(ast.parse(f"({self.old})")) == ast.dump(ast.parse(f"({ast.unparse(self.node)})"))
        except SyntaxError:
            return None
        new = ast.unparse(ast.fix_missing_locations(self.other))
        text = f"if {{}} not in _MUTANTS: {_doubled(self.old)}"
        if isinstance(self.node, ast.expr):
            text = f"(({_doubled(new)}) if {{}} in _MUTANTS else ({_doubled(self.old)}))"
        return Mutant(
            room=room, path=self.path, line=self.node.lineno, change=" ".join(f"{self.old} -> {new}".split()),
            key=self.key, begin=self.begin, end=self.end, text=text,
        ) if is_here else None  # fmt: skip


def _places(path: Path) -> list[_Place]:
    source = path.read_bytes()
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    found: dict[tuple[int, int], _Place] = {}
    times = Counter[str]()
    functions = (
        node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    for function in functions:
        for statement in (node for inner in function.body for node in ast.walk(inner)):
            if not isinstance(statement, _STATEMENTS):
                continue
            for node in ast.walk(statement.test if isinstance(statement, ast.If | ast.While) else statement):
                other = changed(node)
                if other is None or not isinstance(node, ast.expr | ast.stmt):
                    continue
                begin = starts[node.lineno - 1] + node.col_offset
                end = starts[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)
                if (begin, end) in found:
                    continue
                old = source[begin:end].decode()
                key = f"{path} {function.name} {' '.join(old.split())}"
                times[key] += 1
                found[begin, end] = _Place(
                    path=str(path), key=f"{key} {times[key]}", node=node, other=other, begin=begin, end=end, old=old
                )
    return [found[place] for place in sorted(found)]


def _doubled(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


def woven(source: bytes, drawn: dict[int, Mutant]) -> bytes | None:
    """The module with each mutant behind the switch of its number; None where a mutant finds no place."""
    for number, mutant in sorted(drawn.items(), key=lambda pair: -pair[1].begin):
        source = source[: mutant.begin] + mutant.text.format(number).encode() + source[mutant.end :]
    try:
        body = ast.parse(source).body
        first = next(
            node for node in body
            if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
            and not (isinstance(node, ast.ImportFrom) and node.module == "__future__")
        )  # fmt: skip
        line = min(node.lineno for node in [first, *getattr(first, "decorator_list", [])])
        lines = source.splitlines(keepends=True)
        source = b"".join([*lines[: line - 1], _SWITCHES.encode(), *lines[line - 1 :]])
        compile(source, "woven", "exec")
    except SyntaxError:
        return None
    return source


def drawn(rooms: dict[str, int], seed: int, tracked: list[Path]) -> list[Mutant]:
    """By room, taking turns, so that a sample that is cut short has some of each; no mutant has another in it."""
    samples = []
    for room, count in rooms.items():
        product = [
            path for path in tracked
            if path.suffix == ".py" and path.is_relative_to(room) and "tests" not in path.parts
        ]  # fmt: skip
        every = [place for path in sorted(product) for place in _places(path)]
        every.sort(key=lambda place: hashlib.sha256(f"{seed} {place.key}".encode()).digest())
        sample: list[Mutant] = []
        for place in every:
            if len(sample) == count:
                break
            beside = [other for other in sample if other.path == place.path]
            if all(place.end <= other.begin or other.end <= place.begin for other in beside):
                mutant = place.mutant(room)
                if mutant and woven(Path(mutant.path).read_bytes(), dict(enumerate([*beside, mutant]))):
                    sample.append(mutant)
        samples.append(sample)
    turns = [((place + 1) / len(sample), mutant) for sample in samples for place, mutant in enumerate(sample)]
    return [mutant for _, mutant in sorted(turns, key=lambda pair: pair[0])]


def write_tree(tree: Path, tracked: list[Path], sample: list[Mutant]) -> None:
    """The tracked files with the mutants of the sample, their list and their switches."""
    for path in tracked:
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, tree / path, follow_symlinks=False)
    by_path: dict[str, dict[int, Mutant]] = defaultdict(dict)
    for number, mutant in enumerate(sample):
        by_path[mutant.path][number] = mutant
    for name, there in by_path.items():
        source = woven(Path(name).read_bytes(), there)
        assert source is not None, name
        (tree / name).write_bytes(source)
    for name in ("mutants.py", "mutant_tests.py"):  # of another commit
        shutil.copy(Path(__file__).with_name(name), tree / "testing")
    (tree / "mutants.json").write_text(json.dumps([asdict(mutant) for mutant in sample]))
    switches = tree / "mutants.switches"
    switches.write_bytes(bytes(2 * len(sample) or 1))
    switches.chmod(0o666)
    tree.chmod(0o755)
    module = _SWITCHES_MODULE.format(path=str(switches), count=len(sample))
    (tree / "mutants_switches.py").write_text(module)


@dataclass(frozen=True)
class Kept:
    """What the commands so far have found, in a folder of theirs."""

    folder: Path

    def add(self, name: str, line: dict[str, Any]) -> None:
        with (self.folder / name).open("a") as file:
            file.write(json.dumps(line) + "\n")

    def lines(self, name: str) -> list[dict[str, Any]]:
        path = self.folder / name
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    @contextlib.contextmanager
    def claimed(self, subject: str) -> Iterator[bool]:
        """False while another command works at it."""
        digest = hashlib.sha256(subject.encode()).hexdigest()
        with (self.folder / f"claims/{digest}").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            yield True


def report(kept: Kept, sample: list[Mutant]) -> None:
    verdicts = kept.lines("verdicts.jsonl")
    tests = kept.lines("tests.jsonl")
    reached = {key for line in tests for key in line["reached"]}
    at_import = {key for line in kept.lines("imports.jsonl") for key in line["mutants"]}
    caught = {line["mutant"] for line in verdicts if line["caught_by"]}
    judged = caught | {line["mutant"] for line in verdicts if line["tests"]}
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for mutant in sample:
        verdict = "caught" if mutant.key in caught else "survived" if mutant.key in judged else "not judged"
        if mutant.key not in reached:
            verdict = "as a module is imported" if mutant.key in at_import else "not reached"
        counts[mutant.room][verdict] += 1
        if verdict not in ("caught", "not judged"):
            print(f"{verdict}: {mutant.path}:{mutant.line}: {mutant.change}")
    for room, count in counts.items():
        print(f"{room}: {', '.join(f'{number} {verdict}' for verdict, number in sorted(count.items()))}")
    print(f"{len(tests)} tests, {sum(not line['passed'] for line in tests)} of them fail without a mutant")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rooms", nargs="+", help="FOLDER:COUNT")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, default=Path("build/mutants"))
    parser.add_argument("--tests", nargs="+", default=_TESTS, help="files and folders")
    parser.add_argument("--at-most-seconds", type=float, default=3600)
    parser.add_argument("--report", action="store_true")
    given = parser.parse_args()
    until = time.time() + given.at_most_seconds
    tracked = [Path(name) for name in subprocess.check_output(["git", "ls-files"], text=True).split("\n") if name]
    rooms = {room: int(count or 20) for room, _, count in (entry.partition(":") for entry in given.rooms)}
    sample = drawn(rooms, given.seed, tracked)
    kept = Kept(given.keep.absolute())
    (kept.folder / "claims").mkdir(parents=True, exist_ok=True)
    if given.report:
        report(kept, sample)
        return
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        Path(folder).chmod(0o755)
        write_tree(tree, tracked, sample)
        options = ["-q", "-p", "no:cacheprovider", "-p", "testing.mutant_tests"]
        command = [sys.executable, "-m", "pytest", *options, *given.tests]
        environment = {**os.environ, "PYTHONPATH": str(tree), KEEP: str(kept.folder), UNTIL: str(until)}
        subprocess.run(command, cwd=tree, env=environment, check=False)


if __name__ == "__main__":
    main()
