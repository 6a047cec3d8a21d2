"""What a definition or a schema may not say, and in which words it is refused: every case of refusals.yaml.

A group of that file has a valid definition (or schema); each case replaces sections of it, null takes one out.
`python -m common.tests.test_refusals` writes the sentences anew. Lists of names stand there as "...": a further
name changes no sentence.
"""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from common.definition.model import parse_definition
from common.errors import InvalidInput
from common.schema import Schema
from testing.rows import each_row

_FILE = Path(__file__).with_name("refusals.yaml")
_NAMES = re.compile(
    r"(\b(?:one of|some of|none of|known:|there are|it has|labels:|metrics:) )(?!them).*?(?=; did you|, got|$)"
)


def sentence_of(group: dict[str, Any], given: Any) -> str:
    """In which words this is refused; empty where it is taken."""
    try:
        if "model" not in group:
            Schema.from_mapping(group["schema"] | given if isinstance(given, dict) else given)
            return ""
        sections = {key: value for key, value in (group["model"] | given).items() if value is not None}
        files = {path: text.encode() for path, text in group.get("files", {}).items()}
        definition = parse_definition(
            {"model.yaml": yaml.dump(sections, Dumper=yaml.CSafeDumper, sort_keys=False).encode(), **files}
        )
        if "schema" in group:
            definition.check_schema(Schema.from_mapping(group["schema"]))
    except InvalidInput as refused:
        return _NAMES.sub(r"\1...", refused.message)
    return ""


@pytest.mark.covers(
    "api-device", "api-exec-modes", "api-tensor-ops", "eco-tfma", "hook-api", "loss-pointwise", "loss-sigmoid",
    "loss-softmax", "met-classification", "mode-multi-head", "opt-builtin", "opt-clip", "opt-ema", "pipe-feed-modes",
    "rec-image", "rec-raw-tensor",
)  # fmt: skip
@each_row(("name", "group"), yaml.safe_load(_FILE.read_text()).items())
def test_what_may_not_be_said_is_refused_in_these_words(name: str, group: dict[str, Any]) -> None:
    assert sentence_of(group, {}) == "", f"the group {name} itself is valid"
    wrong = {
        str(case["given"]): (found, case["said"])
        for case in group["refused"]
        if (found := sentence_of(group, case["given"])) != case["said"]
    }
    assert not wrong, "what is said now, and what the file has; python -m common.tests.test_refusals writes it anew"


def main() -> None:
    """Writes the file with the sentences of today."""
    groups = yaml.safe_load(_FILE.read_text())
    for group in groups.values():
        for case in group["refused"]:
            case["said"] = sentence_of(group, case["given"])
    lines = [line for line in _FILE.read_text().splitlines() if line.startswith("#")]
    for name, group in groups.items():
        lines.append(f"{name}:")
        for key in ("model", "files", "schema"):
            if key in group:
                text = yaml.safe_dump({key: group[key]}, sort_keys=False, default_flow_style=None, width=115)
                lines += [f"  {line}" for line in text.splitlines()]
        lines.append("  refused:")
        for case in group["refused"]:
            given, said = (
                yaml.safe_dump(case[key], sort_keys=False, default_flow_style=True, width=10**6).splitlines()[0]
                for key in ("given", "said")
            )
            lines += [f"  - given: {given}", f"    said: {said}"]
    _FILE.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
