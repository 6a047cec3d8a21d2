"""Advice: every command and flag of ours that a message, a page or a help text names is there."""

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from headrace.tests.test_documents import command_line, fault

_ROOT = Path(__file__).parents[2]
_ROOMS = ("common", "services", "headrace")
_QUOTED = re.compile(r"(?:`|<code>|<pre>)(headrace [^`<]*)")
_NAMED = re.compile(r"(?<![\w./-])headrace ([a-z][a-z-]*)")
_FLAG = re.compile(r"(?<![\w-])--[a-z][a-z-]*(?![\w=]*_)")
_FLAG_OF = re.compile(r"(--[a-z][a-z-]*) of ([a-z-]+)(?: or ([a-z-]+))?")
_NO_COMMANDS = {"has"}
_NO_FLAGS = {"--name"}
"""Of the form of flags."""


def _paths(ending: str) -> Iterator[Path]:
    for room in _ROOMS:
        yield from (path for path in sorted((_ROOT / room).rglob(f"*.{ending}")) if "tests" not in path.parts)


@functools.cache
def sentences() -> tuple[tuple[str, str], ...]:
    """(place, text) of every string of the product but for docstrings; X stands for what is filled in."""
    return tuple(_sentences())


def _sentences() -> Iterator[tuple[str, str]]:
    for path in _paths("py"):
        text = path.read_text()
        if not _NAMED.search(text) and not _FLAG.search(text):
            continue
        passed_over = set[ast.AST]()
        for node in ast.walk(ast.parse(text)):  # parents first
            if isinstance(node, ast.Expr):
                passed_over.add(node.value)
            elif isinstance(node, ast.JoinedStr) and node not in passed_over:
                passed_over.update(node.values)
                parts = [str(part.value) if isinstance(part, ast.Constant) else "X" for part in node.values]
                yield f"{path.relative_to(_ROOT)}:{node.lineno}", "".join(parts)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in passed_over:
                yield f"{path.relative_to(_ROOT)}:{node.lineno}", node.value
    for path in _paths("html"):
        text = re.sub(r"{{.*?}}|{%.*?%}", "X", path.read_text(), flags=re.S)
        yield str(path.relative_to(_ROOT)), text


def options(command: Any) -> Iterator[str]:
    """Of the command and of those below it."""
    for option in command.params:
        yield from (*option.opts, *option.secondary_opts)
    for below in getattr(command, "commands", {}).values():
        yield from options(below)


def commands() -> dict[str, Any]:
    """By name."""
    found: dict[str, Any] = command_line().commands
    return found


def test_every_command_that_a_message_names_is_there_with_its_options() -> None:
    named = [(place, line.strip()) for place, text in sentences() for line in _QUOTED.findall(text)]
    wrong = [f"{place}: {line!r}: {why}" for place, line in named if (why := fault(line.partition(";")[0]))]
    assert wrong == []
    assert len(named) > 25, "so they are found"


def test_every_command_that_a_message_names_without_quoting_it_is_there() -> None:
    named = {word: place for place, text in sentences() for word in _NAMED.findall(text)}
    assert {word: place for word, place in named.items() if word not in commands() and word not in _NO_COMMANDS} == {}


def test_every_flag_that_a_message_names_is_one_of_a_command() -> None:
    """Or of the program that the file itself is, as `python -m services.registry.backup`."""
    told = sentences()
    known = {"--help", *options(command_line())}
    own = {(place.partition(":")[0], text) for place, text in told}
    named = [(place, flag) for place, text in told if " " in text.strip() for flag in _FLAG.findall(text)]
    wrong = [(place, flag) for place, flag in named if flag not in known | _NO_FLAGS]
    assert [(place, flag) for place, flag in wrong if (place.partition(":")[0], flag) not in own] == []
    assert len(named) > 40


def test_a_flag_that_a_message_names_with_its_command_is_one_of_that_command() -> None:
    named = [(place, *found) for place, text in sentences() for found in _FLAG_OF.findall(text)]
    of = [(place, flag, command) for place, flag, *words in named for command in words if command in commands()]
    assert [(place, flag, command) for place, flag, command in of if flag not in options(commands()[command])] == []
    assert {(flag, command) for _, flag, command in of} >= {
        ("--allow-signature-change", "apply"), ("--allow-signature-change", "train"),
    }  # fmt: skip


def test_advice_that_cannot_be_followed_is_found() -> None:
    assert fault("headrace train m --again")
    assert fault("headrace retrain m")
    assert "--again" not in set(options(command_line()))
