"""The sampler of mutants changes a part of a statement, and finds the tests that import the module."""

from pathlib import Path

from testing.mutants import compiles, mutants, nearest_tests

_MODULE = """LIMIT = 3

def longest(words):
    if not words or len(words) > LIMIT:
        return f"{words!r}"
    elif words[0] == "a":
        return 1
"""


def test_a_mutant_changes_one_part_of_a_function_and_nothing_else(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text(_MODULE)
    found = mutants("room", module)
    changes = {mutant.what.partition(" -> ")[2]: mutant for mutant in found}
    assert {"words", "len(words) >= LIMIT", "not words and len(words) > LIMIT", "2"} <= set(changes)
    assert changes["2"].text.decode() == _MODULE.replace("return 1", "return (2)"), "constants of the module stay"
    assert changes["2"].raising.decode().splitlines()[6:8] == [
        '        raise RuntimeError("reached")',
        "        return 1",
    ]
    assert {change for change, mutant in changes.items() if not compiles(mutant)} == {"words[0] != 'a'", "1"}, "an elif"


def test_the_nearest_tests_import_the_module_themselves() -> None:
    module, user = Path("services/a/core.py"), Path("services/a/doors.py")
    far, near, named, foreign = (
        Path(f"services/{name}.py")
        for name in ("a/tests/test_doors", "a/tests/test_a", "a/tests/test_core", "b/test_b")
    )
    imports = {user: {module}, far: {user}, near: {module}, named: {module}, foreign: {module}}
    assert nearest_tests(module, imports) == [named, near, far], "of its service only"
