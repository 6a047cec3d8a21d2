"""Documents: indexes name every page, commands are the command line's, YAML of short answers is valid."""

import ast
import functools
import re
import shlex
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer.main
import yaml

from common.definition.model import parse_definition
from common.schema import Schema
from docs.generate import definition, prose, settings, stream
from docs.generate.pages import PAGES
from headrace.cli import app
from testing.rows import each_row

_ROOT = Path(__file__).parents[2]
_DOCS = _ROOT / "docs"
_WRITTEN = {str(page.relative_to(_DOCS)) for page in _DOCS.rglob("*.md")} - set(PAGES)
_PAGES = [_ROOT / "README.md", _ROOT / "CONTRIBUTING.md", *(_DOCS / page for page in sorted(_WRITTEN))]
_LINE = re.compile(r"^(?: {4})?(headrace .*)$", re.M)
_INLINE = re.compile(r"`(headrace [^`]*)`")
_YAML = re.compile(r"^```yaml(?: title=\"(?P<title>[^\"]+)\")?\n(?P<text>.*?)^```", re.M | re.S)
_ENDS = {"|", "||", "&&", ";", ">", "<", "&"}
_MODEL: dict[str, Any] = {
    "name": "late", "stream": "deliveries", "label": "late", "estimator": "linear_classifier",
    "features": {"hour": {"type": "numeric"}},
}  # fmt: skip


def commands() -> Iterator[tuple[str, str]]:
    """(page, line) of each command of ours, in blocks and within sentences."""
    for page in _PAGES:
        text = page.read_text()
        for found in (*_LINE.finditer(text.replace("\\\n", " ")), *_INLINE.finditer(text.replace("\n", " "))):
            yield str(page.relative_to(_ROOT)), found[1]


@functools.cache
def command_line() -> Any:
    return typer.main.get_command(app)


def fault(line: str) -> str:
    """What of the line the command line does not know; empty where it knows everything."""
    command: Any = command_line()
    words = shlex.split(line, comments=True)[1:]
    options: dict[str, Any] = {"--help": None, "--json": None}
    while words and words[0] not in _ENDS:
        options |= {name: option for option in command.params for name in option.opts}
        word = words.pop(0)
        if word.startswith("-") and len(word) > 1:
            name, _, value = word.partition("=")
            if name not in options:
                return f"{command.name} has no {name}"
            takes_value = options[name] is not None and not options[name].is_flag
            words = words[1:] if takes_value and not value else words
        elif hasattr(command, "commands"):
            if word not in command.commands:
                return "" if word.isupper() or word == "..." else f"{command.name} has no command {word}"
            command = command.commands[word]
    return ""


def test_a_page_that_names_a_command_or_option_of_ours_names_one_that_is_there() -> None:
    wrong = [f"{page}: {line!r}: {why}" for page, line in commands() if (why := fault(line))]
    assert wrong == []
    assert fault("headrace deadletters s"), "so a wrong one is found"
    assert fault("headrace train m --now")


def test_the_indexes_name_every_page() -> None:
    rooms = ("guide/", "reference/", "internals/")
    pages = {page for page in (*_WRITTEN, *PAGES) if page.startswith(rooms)}
    for index in (_DOCS / "README.md", _ROOT / "mkdocs.yml"):
        assert pages == set(re.findall(r"(?:guide|reference|internals)/[\w/-]+\.md", index.read_text())), index.name


def test_each_setting_stands_in_a_page_of_the_guide() -> None:
    """By its variable; a setting that several services have, once for all of them: `HOST` or `…_HOST`."""
    words = _words_of_the_guide()
    variables = re.findall(r"^- `([A-Z]+_)([A-Z0-9_]+)`", settings.document(), re.M)
    assert len(variables) > 150
    services = Counter(name for _, name in variables)
    missing = [
        service + name
        for service, name in variables
        if service + name not in words and not (services[name] > 1 and words & {name, f"_{name}"})
    ]
    assert missing == [], "a table of its task names it, or nobody needs it"


def test_each_key_of_a_definition_stands_in_a_page_of_the_guide() -> None:
    """But for names of losses and metrics, which the reference lists."""
    sections = [
        section
        for page in (definition.document(), stream.document())
        for section in page.split("\n## ")[1:]
        if section.partition("\n")[0] not in ("loss", "evaluation: metrics")
    ]
    keys = dict.fromkeys(key for section in sections for key in re.findall(r"^ *- `(\w+)`", section, re.M))
    assert len(keys) > 200
    assert keys.keys() - _words_of_the_guide() == set()


def _words_of_the_guide() -> set[str]:
    return {word for page in (_DOCS / "guide").glob("*.md") for word in re.findall(r"\w+", page.read_text())}


def test_a_word_that_stands_for_a_noun_is_found_and_what_is_allowed_only_shrinks() -> None:
    text = "The one that waits is told.\nOne replica of its own, so many.\nSomebody: take another one, one of them"
    found = [(line, words) for line, _, words in prose.found_in(text)]
    assert found == [
        (1, "told"), (1, "The one"), (2, "so many"), (2, "of its own"), (3, "Somebody"), (3, "another one"),
    ]  # fmt: skip
    rule = "the noun in place of `one`"
    faults, left = prose.judge(
        {"a.md": "the new one.", "b.md": "ones, and ones"}, {("a.md", rule): 3, ("b.md", rule): 1}
    )
    assert faults == [f"b.md:1: 'ones': {rule}", f"b.md:1: 'ones': {rule}"]
    assert left == {("a.md", rule): 1, ("b.md", rule): 1}


def test_contributing_names_what_its_files_have() -> None:
    text = (_ROOT / "CONTRIBUTING.md").read_text()
    named = re.findall(r"`(\w+)`\s+(?:of|in)\s+`([\w/]+\.py)`", text)
    assert len(named) > 5
    defined = r"^(?:class |def )?{}\b *[=:(]"
    wrong = [found for found in named if not re.search(defined.format(found[0]), (_ROOT / found[1]).read_text(), re.M)]
    assert wrong == [], "an import is not the place"


@each_row("block", list(_YAML.finditer((_DOCS / "guide/how-do-i.md").read_text())))
def test_yaml_of_the_short_answers_is_taken(block: re.Match[str]) -> None:
    document = yaml.safe_load(block["text"])
    if block["title"] == "stream.yaml":
        assert (
            Schema.from_mapping({key: value for key, value in document.items() if key != "stream"}).source is not None
        )
    else:
        parse_definition({"model.yaml": yaml.safe_dump(_MODEL | document).encode()})


_STEP = re.compile(r"^( *)- `([\w/.]+)` `([\w.]+)`: ", re.MULTILINE)
_MOST_FILES = {"An event becomes a version": 50, "A version goes live": 20}


def test_each_step_of_the_walks_through_the_code_leads_to_the_next() -> None:
    """The function is where the page says, and the file of the item above it names it."""
    text = (_DOCS / "internals/code-in-fifteen-minutes.md").read_text()
    walks = {walk.partition("\n")[0]: walk for walk in text.split("\n## ")[1:]}
    steps_of = {title: _STEP.findall(walk) for title, walk in walks.items()}
    assert sum(map(len, steps_of.values())) == len(re.findall(r"^ *- ", text, re.MULTILINE)) > 40
    wrong: list[str] = []
    for title, steps in steps_of.items():
        callers: dict[int, str] = {}
        for indent, path, name in steps:
            depth, source = len(indent) // 4, (_ROOT / path).read_text()
            if name not in _defined(ast.parse(source)):
                wrong.append(f"{path} has no {name}")
            if depth and not re.search(rf"\b{name.rpartition('.')[2]}\b", callers[depth - 1]):
                wrong.append(f"{title}: nothing above {name} of {path} names it")
            callers[depth] = source
        count = len({path for _, path, _ in steps})
        assert walks[title].count(f"\nIt names {count} files.\n") == 1, f"{title}: {count} files"
        assert count <= _MOST_FILES.get(title, 20), title
    assert wrong == []


def _defined(tree: ast.AST, of: str = "") -> set[str]:
    """Functions, classes and their methods, as `Class.method`."""
    found = set[str]()
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(of + node.name)
        if isinstance(node, ast.ClassDef):
            found |= _defined(node, f"{node.name}.")
    return found
