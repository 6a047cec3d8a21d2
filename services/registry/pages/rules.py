"""Rights on the pages."""

from collections.abc import Iterator, Mapping

from common.access.guard import ANYBODY, OPEN, Rule, rule
from services.registry.pages import actions, documents, history
from services.registry.pages.door import PAGES, STATIC_FILES

_VIEWS = rule("viewer")


def _rules() -> Iterator[tuple[str, Rule]]:
    for page in PAGES:
        found = rule("viewer", "author:{model}") if "{model}" in page.path else _VIEWS
        found = ANYBODY if page.path.startswith("/documents/") else found
        yield f"GET {page.path}", found
        yield f"GET /live{page.path.rstrip('/')}", found
    for form in actions.FORMS:
        yield f"GET {form.path}", form.rule
        yield f"POST {form.path}", form.rule
    yield "POST /models/{model}/versions/{version}/try", actions.TRIES
    yield from (("GET /login", OPEN), ("POST /login", OPEN), ("POST /logout", OPEN))
    yield from (("GET /login/issuer", OPEN), ("GET /login/callback", OPEN))
    yield "GET /models/{model}/versions/{version}/since", rule("viewer", "author:{model}")
    yield from ((f"GET /history.{kind}", _VIEWS) for kind in history.EXPORTS)
    yield from ((f"GET /documents/{name}", ANYBODY) for name in documents.known(*documents.PICTURES))
    yield from ((f"GET /static/{path.name}", OPEN) for path in STATIC_FILES)


PAGE_RULES: Mapping[str, Rule] = dict(_rules())
