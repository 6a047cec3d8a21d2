"""A kilobyte of YAML stays a kilobyte of values, and is read at once."""

import pytest

from common.errors import InvalidInput
from common.strict_yaml import MAX_BYTES, MAX_VALUES, read_yaml
from testing.rows import each_row

_LAUGHS = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 20))


@each_row(
    ("text", "reason"),
    [
        (_LAUGHS, r"f: line 2 has the alias \*a0; aliases are refused"),
        ("a: &a [*a]", r"line 1 has the alias \*a"),
        ("a: &a {b: 1}\nc:\n  <<: *a", "line 3 has the alias"),
        ("a: " + "9" * 10_000, "does not fit into 64 bits"),
        ("a: 18446744073709551616", "does not fit into 64 bits"),
        ("a: 0x" + "f" * 17, "does not fit into 64 bits"),
        ("a: " + ":".join(["59"] * 20), "does not fit into 64 bits"),
        ("[" * 40 + "]" * 40, "nested more than 32 deep"),
        ("[" * 100_000, "nested more than 32 deep"),
        ("a: 2026-99-99", "f is not YAML: month must be in 1..12"),
        ("a: 1\nb: 2\na: 3\nb: 4", r"f: a given twice \(again in line 3\), b given twice \(again in line 4\)"),
        ("[1, 2]: 3", "f is not YAML"),
        ("a: b: c", "f is not YAML"),
        ("a: !!bool maybe", "f is not YAML"),
        ("a: !!int ''", "f is not YAML"),
        ("a: !!timestamp x", "f is not YAML"),
        ("a\0b", "f is not YAML"),
        ("a: !!python/name:os.system", "f is not YAML"),
        ("a: 1\n---\nb: 2", "f is not YAML"),
        ("[" + "1," * MAX_VALUES + "]", f"more than {MAX_VALUES} values"),
        ("#" * (MAX_BYTES + 1), f"expected at most {MAX_BYTES}"),
    ],
)
def test_hostile_yaml_is_refused_with_its_place(text: str, reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason):
        read_yaml(text.encode(), "f")


def test_ordinary_values_are_those_of_yaml() -> None:
    text = b"a: -9223372036854775808\nb: 1_000\nc: 0x1F\nd: [1e3, .inf, ~, yes]\ne: &x text\nf: 1:30"
    values = {"a": -(2**63), "b": 1000, "c": 31, "d": [1000.0, float("inf"), None, True], "e": "text", "f": 90}
    assert read_yaml(text, "f") == values


def test_many_keys_take_no_longer_than_they_must() -> None:
    document = read_yaml("".join(f"k{n}: {n}\n" for n in range(5_000)).encode(), "f")
    assert isinstance(document, dict)
    assert len(document) == 5_000


def test_text_that_is_not_utf_8_is_refused() -> None:
    with pytest.raises(InvalidInput, match="f is not YAML: 'utf-8' codec"):
        read_yaml("a: 1".encode("utf-16"), "f")


@each_row(("text", "value"), [("1e-3", 1e-3), ("-2E+4", -2e4), ("1.5e3", 1.5e3), ('"1e-3"', "1e-3"), ("1e", "1e")])
def test_a_number_may_have_an_exponent_and_no_point(text: str, value: object) -> None:
    assert read_yaml(f"a: {text}".encode(), "model.yaml") == {"a": value}
