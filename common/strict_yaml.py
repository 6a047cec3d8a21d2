"""YAML that people write, read within bounds: what a kilobyte of it can become is known before memory is taken.

Refused beyond YAML's own rules: aliases (a few nested aliases stand for billions of values), more nesting, values or
bytes than any definition has, integers beyond 64 bits, a key given twice. As in YAML 1.2, 1e-3 is a
number; PyYAML's own rule wants 1.0e-3.
"""

import re
from typing import Any

import yaml

from common.errors import InvalidInput

MAX_BYTES = 1024 * 1024
MAX_DEPTH = 32
MAX_VALUES = 100_000
_LOWEST, _HIGHEST = -(2**63), 2**64 - 1
_MAX_INTEGER_TEXT = 80
_EXPONENTS = re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$")

_FAULTS = (
    yaml.YAMLError, UnicodeError, RecursionError, ValueError, OverflowError, TypeError, LookupError, AttributeError,
)  # fmt: skip
"""The last two where a tag is written out and its value is none, as in `!!bool maybe` and `!!timestamp x`."""


class _StrictLoader(yaml.CSafeLoader):
    """Raises InvalidInput with the line. `place` names the file."""

    place = ""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """PyYAML keeps the last of two equal keys, which YAML forbids."""
        seen: set[str] = set()
        repeated: dict[str, int] = {}
        for key, _ in node.value:
            text = f"{key.tag} {key.value}"
            if text in seen:
                repeated.setdefault(str(key.value)[:100], key.start_mark.line + 1)
            seen.add(text)
        if repeated:
            found = ", ".join(f"{name} given twice (again in line {line})" for name, line in repeated.items())
            raise InvalidInput(f"{self.place}: {found}")
        return dict(super().construct_mapping(node, deep=deep))

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        text = str(node.value)
        value = _HIGHEST + 1 if len(text) > _MAX_INTEGER_TEXT else super().construct_yaml_int(node)
        if not _LOWEST <= value <= _HIGHEST:
            raise InvalidInput(f"{self.place}: {text[:30]} (line {node.start_mark.line + 1}) does not fit into 64 bits")
        return int(value)


_StrictLoader.add_constructor("tag:yaml.org,2002:int", _StrictLoader.construct_yaml_int)
_StrictLoader.add_implicit_resolver("tag:yaml.org,2002:float", _EXPONENTS, [*"-+0123456789"])


def read_yaml(content: bytes, place: str) -> object:
    """The one document.

    Args:
        place: the file's name, for the sentence of an error.

    Raises:
        InvalidInput: it is no YAML, or more than any definition is; says where.
    """
    if len(content) > MAX_BYTES:
        raise InvalidInput(f"{place} has {len(content)} bytes, expected at most {MAX_BYTES}")
    try:
        content.decode()  # PyYAML would read UTF-16 too, no other reader here does
        _check_events(content, place)
        return yaml.load(content, Loader=type("_Loader", (_StrictLoader,), {"place": place}))  # noqa: S506 - derives from SafeLoader
    except InvalidInput:
        raise
    except _FAULTS as error:
        raise InvalidInput(f"{place} is not YAML: {error}") from error


def _check_events(content: bytes, name: str) -> None:
    """Looks at the text once before anything is made of it. Raises InvalidInput."""
    depth = 0
    for count, event in enumerate(yaml.parse(content, Loader=yaml.CSafeLoader)):
        place = f"{name}: line {event.start_mark.line + 1 if event.start_mark else 0}"
        if isinstance(event, yaml.AliasEvent):
            raise InvalidInput(f"{place} has the alias *{event.anchor}; aliases are refused, write the value")
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > MAX_DEPTH:
            raise InvalidInput(f"{place} is nested more than {MAX_DEPTH} deep")
        if count > MAX_VALUES:
            raise InvalidInput(f"{place} has more than {MAX_VALUES} values and keys")
