"""How much the tests notice: `python -m testing.mutants --seed 1 --count 60 services/trainer/plan common/definition`.

Draws mutants of the product code below each folder by seed, the same after an edit elsewhere: a comparison, operator,
number, truth value, condition or call is changed in a copy of the tracked files. For each mutant the nearest
test files run with -x: those with the fewest imports between test and module, in the folder's own service. Prints by
folder how many mutants are caught (a test fails, or the time is over), survived, or not reached (tests pass although
the statement raises), and lists those that are not caught. "tests fail without it": the machine was too busy for
--seconds, or a test fails anyway, which is tried once for the same tests; such a mutant counts for nothing. A mutant
that changes nothing visible survives.
"""

import argparse
import ast
import contextlib
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from queue import SimpleQueue

_SWAPS = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.Div: ast.Mult,
}  # fmt: skip
_STATEMENTS = (ast.Expr, ast.Assign, ast.AugAssign, ast.Return, ast.If, ast.While, ast.Raise)
_NEAREST = 4
"""Test files a mutant."""
_GOLDEN = Path("common/tests/test_refusals.py")
"""Its cases are in a file, and of every module of its service: it runs beside the nearest."""


@dataclass(frozen=True, kw_only=True)
class Mutant:
    room: str
    path: Path
    line: int
    change: str
    text: bytes
    raising: bytes
    """The module with the change, and with a raise before the changed statement."""


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


def mutants(room: str, path: Path) -> list[Mutant]:
    """Every mutant of a module's functions; the rest of the module is as it stands, to the byte."""
    source = path.read_bytes()
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    found: dict[tuple[int, int], Mutant] = {}
    functions = (
        node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )
    for statement in (node for function in functions for inner in function.body for node in ast.walk(inner)):
        if not isinstance(statement, _STATEMENTS):
            continue
        top, column = starts[statement.lineno - 1], statement.col_offset
        raising = source[:top] + b" " * column + b'raise RuntimeError("reached")\n' + source[top:]
        for node in ast.walk(statement.test if isinstance(statement, ast.If | ast.While) else statement):
            other = changed(node)
            if other is None or not isinstance(node, ast.expr | ast.stmt):
                continue
            begin, end = (
                starts[node.lineno - 1] + node.col_offset,
                starts[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0),
            )
            new = ast.unparse(ast.fix_missing_locations(other))
            text = source[:begin] + (new if isinstance(node, ast.stmt) else f"({new})").encode() + source[end:]
            change = f"{source[begin:end].decode()} -> {new}".replace("\n", " ")
            found[begin, end] = Mutant(
                room=room, path=path, line=node.lineno, change=change, text=text, raising=raising
            )
    return [found[place] for place in sorted(found)]


def compiles(mutant: Mutant) -> bool:
    """False in a format string, and where the statement does not begin its line."""
    try:
        return bool(compile(mutant.text, "changed", "exec") and compile(mutant.raising, "raising", "exec"))
    except SyntaxError:
        return False


def imported(path: Path) -> set[Path]:
    """The files of this repository that a file imports."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return {file for name in names if (file := Path(name.replace(".", "/") + ".py")).is_file()}


def nearest_tests(module: Path, imports: dict[Path, set[Path]]) -> list[Path]:
    """The test files of the module's service with the fewest imports to it; of equal files, those of its name first."""
    service = module.parts[: 2 if module.parts[0] == "services" else 1]
    layer, seen, tests = {module}, {module}, list[Path]()
    while layer and len(tests) < _NEAREST:
        layer = {path for path, uses in imports.items() if uses & layer} - seen
        seen |= layer
        near = [path for path in layer if path.name.startswith("test_") and path.parts[: len(service)] == service]
        tests += sorted(near, key=lambda path: (module.stem not in path.stem, str(path)))
    found = tests[:_NEAREST]
    return found if _GOLDEN in found or _GOLDEN.parts[: len(service)] != service else [*found, _GOLDEN]


def fails(tree: Path, path: Path, text: bytes, tests: list[Path], seconds: float) -> bool:
    """Whether the tests fail, or take longer, while the file has this text."""
    (tree / path).write_bytes(text)
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *map(str, tests)]
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    process = subprocess.Popen(
        command, cwd=tree, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        return process.wait(seconds) != 0
    except subprocess.TimeoutExpired:
        return True
    finally:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.send_signal(signal.SIGINT)  # pytest ends what its fixtures started
            process.wait(20)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)
        shutil.copyfile(path, tree / path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rooms", nargs="+")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=20, help="mutants of each room")
    parser.add_argument("--seconds", type=float, default=120, help="for the tests of a mutant")
    parser.add_argument("--jobs", type=int, default=2)
    given = parser.parse_args()
    tracked = [Path(name) for name in subprocess.check_output(["git", "ls-files"], text=True).split("\n") if name]
    imports = {path: imported(path) for path in tracked if path.suffix == ".py"}
    drawn = []
    for room in given.rooms:
        product = [path for path in imports if path.is_relative_to(room) and "tests" not in path.parts]
        every = [mutant for path in sorted(product) for mutant in mutants(room, path)]
        every.sort(key=lambda mutant: hashlib.sha256(f"{given.seed} {mutant.path} {mutant.change}".encode()).digest())
        drawn += list(islice(filter(compiles, every), given.count))
    trees: SimpleQueue[Path] = SimpleQueue()
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(given.jobs) as pool:
        for job in range(given.jobs):
            trees.put(Path(folder) / str(job))
            for path in tracked:
                (Path(folder) / str(job) / path).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, Path(folder) / str(job) / path)

        fail_anyway: dict[tuple[Path, ...], bool] = {}

        def judge(mutant: Mutant) -> str:
            tests, tree = nearest_tests(mutant.path, imports), trees.get()
            try:
                if not tests:
                    return "not reached"
                if not fails(tree, mutant.path, mutant.text, tests, given.seconds):
                    is_reached = fails(tree, mutant.path, mutant.raising, tests, given.seconds)
                    return "survived" if is_reached else "not reached"
                if (key := tuple(tests)) not in fail_anyway:
                    fail_anyway[key] = fails(tree, mutant.path, mutant.path.read_bytes(), tests, given.seconds)
                return "tests fail without it" if fail_anyway[key] else "caught"
            finally:
                trees.put(tree)

        counts: dict[str, Counter[str]] = {room: Counter() for room in given.rooms}
        for mutant, verdict in zip(drawn, pool.map(judge, drawn), strict=True):
            counts[mutant.room][verdict] += 1
            if verdict != "caught":
                print(f"{verdict}: {mutant.path}:{mutant.line}: {mutant.change}", flush=True)
        for room, count in counts.items():
            print(f"{room}: {', '.join(f'{number} {verdict}' for verdict, number in sorted(count.items()))}")


if __name__ == "__main__":
    main()
