"""The arguments of a page's function, and readings that several pages share."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from urllib.parse import urlencode

from common.errors import InvalidInput, NotFound
from common.registry.catalog import JsonMap
from services.registry.catalog import Catalog
from services.registry.pages.charts import added
from services.registry.pages.service_links import ServiceLinks
from services.registry.series import Wanted, is_percentile

_MAX_NUMBER = 2**63


@dataclass(frozen=True)
class Place:
    """The reader's address and principal."""

    path: str
    names: Mapping[str, str]
    """Of the path: model, version, stream."""
    query: Mapping[str, str]
    session: str
    token: str
    """Goes into forms."""
    by: str
    """The name that the reader gave with the last change; "" before."""
    base_url: str
    is_live: bool = False
    """Whether an open page is kept up to date; an expensive part then stays as it was."""
    principal: str = ""
    """The principal; "" where requests need no credentials."""
    remark: str = ""
    """A warning on every page."""

    def link(self, **changed: str) -> str:
        """The same page with these parameters; "" leaves a parameter out."""
        query = {**self.query, "done": "", **changed}
        return f"?{urlencode({name: value for name, value in query.items() if value})}"

    def number(self, name: str) -> int:
        """A positive number of the path. Raises NotFound for anything else, as there is no such page."""
        return positive(self.names[name], NotFound(f"there is no {name} {self.names[name]!r}"))

    def query_number(self, name: str, default: int = 0) -> int:
        """A positive number of the query; raises InvalidInput."""
        text = self.query.get(name, "")
        if not text:
            return default
        return positive(text, InvalidInput(f"{name} is {text!r}, expected a positive number"))


def positive(text: str, error: Exception) -> int:
    if not (text.isascii() and text.isdigit() and 0 < int(text[:20]) < _MAX_NUMBER):
        raise error
    return int(text)


@dataclass(frozen=True)
class Reading:
    """A page's sources: the catalog through the functions of the HTTP door, and the other services."""

    catalog: Catalog
    service_links: ServiceLinks

    @cached_property
    def instances(self) -> list[JsonMap]:
        """The last reports of instances; the same for the whole page."""
        return self.catalog.observed.instances()

    def over_time(
        self, name: str, *, service: str = "", stream: str | None = "", model: str | None = "", version: int | None = 0
    ) -> list[float | None]:
        """The last hour of a number over all instances: their sum, or the largest of percentiles."""
        wanted = Wanted(name, service, "", stream, model, version)
        try:
            found = self.catalog.observed.series.find(wanted, seconds=3600, step_seconds=60)
        except InvalidInput:
            return []  # Nobody has reported it yet.
        return added([series["points"] for series in found["series"]], largest=is_percentile(name))

    def now(self, name: str, *, service: str, stream: str = "", model: str = "", version: int = 0) -> float | None:
        """The number over the last reports of all instances; None while no instance reports it."""
        reported = self._reported.get((service, stream, model, version), ())
        values = [numbers[name] for numbers in reported if name in numbers]
        if not values:
            return None
        return max(values) if is_percentile(name) or name == "queue_requests" else sum(values)

    @cached_property
    def _reported(self) -> dict[tuple[str, str, str, int], list[Mapping[str, float]]]:
        """{(service, stream, model, version): numbers of each instance}."""
        found: dict[tuple[str, str, str, int], list[Mapping[str, float]]] = {}
        for instance in self.instances:
            whole = {"stream": "", "model": "", "version": 0, "numbers": instance["numbers"]}
            for part in (whole, *instance["parts"]):
                key = (instance["service"], part["stream"], part["model"], part["version"])
                found.setdefault(key, []).append(part["numbers"])
        return found
