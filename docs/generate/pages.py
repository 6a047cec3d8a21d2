"""The pages that are made from the code, by their path below docs/; `.gitignore` names them."""

from collections.abc import Callable, Mapping

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
    settings,
    stream,
)

PAGES: Mapping[str, Callable[[], str]] = {
    "reference/stream.md": stream.document,
    "reference/model.md": definition.document,
    "reference/keras-names.md": keras_names.page_of_names,
    "reference/settings.md": settings.document,
    "reference/chart.md": chart.document,
    "reference/flags.md": flags.document,
    "reference/cli.md": commands.document,
    "reference/http.md": http.document,
    "reference/grpc.md": grpc_methods.document,
    "reference/metrics.md": metrics.document,
    "reference/errors.md": errors.document,
    "internals/coverage.md": coverage.document,
}
