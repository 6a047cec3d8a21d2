"""Writes all that is generated: docs/reference, and coverage.md and scaling.svg of docs/internals (make docs)."""

from collections.abc import Callable, Mapping
from pathlib import Path

from docs.generate import (
    chart,
    commands,
    coverage,
    definition,
    errors,
    flags,
    grpc_methods,
    http,
    keras_names,
    metrics,
    names,
    prose,
    scaling_plot,
    settings,
    stream,
)

_REFERENCE = Path(__file__).parents[1] / "reference"
_PAGES: Mapping[str, Callable[[], str]] = {
    "stream.md": stream.document,
    "model.md": definition.document,
    "keras-names.md": keras_names.page_of_names,
    "settings.md": settings.document,
    "chart.md": chart.document,
    "flags.md": flags.document,
    "cli.md": commands.document,
    "http.md": http.document,
    "grpc.md": grpc_methods.document,
    "metrics.md": metrics.document,
    "errors.md": errors.document,
}


def main() -> None:
    keras_names.TABLE.write_text(keras_names.document())
    for name, document in _PAGES.items():
        (_REFERENCE / name).write_text(document())
    (_REFERENCE.parent / "internals" / "coverage.md").write_text(coverage.document())
    scaling_plot.PLOT.write_text(scaling_plot.document())
    names.check()
    prose.check()


if __name__ == "__main__":
    main()
