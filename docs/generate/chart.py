"""docs/reference/chart.md, from the Helm chart's values.schema.json and values.yaml."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from docs.generate.markdown import bullet, page, paragraph

_CHART = Path(__file__).parents[2] / "deploy" / "helm" / "headrace"
_INTRODUCTION = """\
Values of `deploy/helm/headrace` ([On Kubernetes](../guide/kubernetes.md)). `values.schema.json` refuses every other key
and every value of another type, at `helm install`, `upgrade`, `template` and `lint`."""


def document() -> str:
    schema = json.loads((_CHART / "values.schema.json").read_text())
    defaults = yaml.safe_load((_CHART / "values.yaml").read_text())
    alone = [bullet(text) for name, value in defaults.items() for text in _rows(schema, name, value, is_alone=True)]
    parts = ["\n".join(alone)]
    for name, value in defaults.items():
        if rows := list(_rows(schema, name, value, is_alone=False)):
            parts += [f"## {name}", paragraph(schema["properties"][name]["description"]), "\n".join(map(bullet, rows))]
    return page("Values of the Helm chart", __name__, paragraph(_INTRODUCTION), *parts)


def _rows(schema: Mapping[str, Any], name: str, value: Any, *, is_alone: bool) -> Iterator[str]:
    described = schema["properties"][name]
    if is_alone == ("properties" not in described):
        yield from _described(schema, name, described, value)


def _described(schema: Mapping[str, Any], name: str, described: Mapping[str, Any], value: Any) -> Iterator[str]:
    """Raises KeyError where a value has no description, or a description no value."""
    meant = schema["definitions"][described["$ref"].rpartition("/")[2]] if "$ref" in described else described
    if not value or "properties" not in meant or "requests" in value:
        shown = value if isinstance(value, str) else json.dumps(value)
        yield f"`{name}` (default {f'`{shown}`' if shown else 'empty'}): {described['description']}"
        return
    if "$ref" in described:
        yield f"`{name}`: {described['description']}"
    for key, inner in meant["properties"].items():
        yield from _described(schema, f"{name}.{key}", inner, value[key])
