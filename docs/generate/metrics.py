"""docs/reference/metrics.md: every Prometheus metric, from the calls that make them.

Read from the source, since most of serving's metrics are made only when Prometheus asks a running front. The arguments
of such a call are evaluated among the names of its module; a loop around it over one of the module's tables is run.
"""

import ast
import importlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from docs.generate.markdown import bullet, page

_ROOT = Path(__file__).parents[2]
_KINDS = {
    "Counter": "counter",
    "Gauge": "gauge",
    "Histogram": "histogram",
    "CounterMetricFamily": "counter",
    "GaugeMetricFamily": "gauge",
    "HistogramMetricFamily": "histogram",
}
_INTRODUCTION = """\
At `/metrics` of each service, with the labels in brackets. A counter's name ends with `_total`; a histogram has
`_bucket`, `_sum` and `_count`. What to watch and when to worry: [Operate](../guide/operate.md)."""


@dataclass(frozen=True, order=True)
class Metric:
    """`name` as Prometheus shows it."""

    name: str
    kind: str
    labels: tuple[str, ...]
    text: str


def document() -> str:
    metrics: dict[str, set[Metric]] = {}
    for path in sorted((*_ROOT.glob("services/**/*.py"), *_ROOT.glob("common/**/*.py"))):
        if "tests" not in path.relative_to(_ROOT).parts and "prometheus_client" in path.read_text():
            service = path.relative_to(_ROOT).parts[1] if "services" in path.parts else "every service"
            metrics.setdefault(service, set()).update(_metrics_of(path))
    parts = [part for service, found in sorted(metrics.items()) if found for part in _section(service, found)]
    return page("Metrics", __name__, _INTRODUCTION, *parts)


def _section(service: str, metrics: set[Metric]) -> Iterator[str]:
    yield f"## {service}"
    yield "\n".join(
        bullet(
            f"`{metric.name}` ({'; '.join((metric.kind, *filter(None, [', '.join(metric.labels)])))}): {metric.text}."
        )
        for metric in sorted(metrics)
    )


def _metrics_of(path: Path) -> Iterator[Metric]:
    tree = ast.parse(path.read_text())
    if not any(_is_metric(node) for node in ast.walk(tree)):
        return
    module = importlib.import_module(".".join(path.relative_to(_ROOT).with_suffix("").parts))
    yield from _search(tree, vars(module))


def _search(node: ast.AST, names: Mapping[str, Any]) -> Iterator[Metric]:
    if _is_metric(node):
        assert isinstance(node, ast.Call)
        yield _metric(node, names)
    for bound in _bindings(node, names):
        for child in ast.iter_child_nodes(node):
            yield from _search(child, bound)


def _bindings(node: ast.AST, names: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The names in the body: for a loop over a table of the module with metrics in it, one set per turn."""
    if not isinstance(node, ast.For) or not any(_is_metric(child) for child in ast.walk(node)):
        return [names]
    each = ast.parse("dict(locals())", mode="eval").body
    turns = ast.GeneratorExp(each, [ast.comprehension(node.target, node.iter, [], 0)])
    return [{**names, **turn} for turn in _value(turns, names)]


def _is_metric(node: ast.AST) -> bool:
    """A call of one of prometheus_client's classes, and not of collections.Counter: it has a name and a text."""
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in _KINDS
        and len(node.args) >= 2
        and ast.unparse(node.args[0]).lstrip("f")[1:].startswith("headrace_")
    )


def _metric(call: ast.Call, names: Mapping[str, Any]) -> Metric:
    assert isinstance(call.func, ast.Name)
    kind = _KINDS[call.func.id]
    name, text = (_value(argument, names) for argument in call.args[:2])
    keywords = {keyword.arg: keyword.value for keyword in call.keywords}
    labels = call.args[2] if len(call.args) > 2 else keywords.get("labels") or keywords.get("labelnames")
    return Metric(
        f"{name}_total" if kind == "counter" else name, kind, tuple(_value(labels, names)) if labels else (), text
    )


def _value(node: ast.expr, names: Mapping[str, Any]) -> Any:
    expression = ast.fix_missing_locations(ast.Expression(node))
    value = eval(compile(expression, "metrics", "eval"), dict(names))  # noqa: S307 - our own source
    return list(value) if isinstance(node, ast.GeneratorExp) else value
