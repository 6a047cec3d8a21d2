"""The documents on the pages: a link leads to them from everywhere, and theirs lead on."""

from pathlib import Path
from urllib.parse import urldefrag, urljoin

import httpx

from services.registry.catalog import Catalog
from services.registry.pages import documents
from services.registry.tests.building import publish
from services.registry.tests.seeing import seen


def test_every_page_has_a_link_to_the_documents(browser: httpx.Client, catalog: Catalog) -> None:
    publish(catalog)
    for path in ("/", "/models/m", "/models/m/versions/1", "/serving", "/models/nobody", "/models/m/do/pause"):
        assert seen(browser.get(path)).all("a", href="/documents/README.md"), path
    page = seen(browser.get("/documents/README.md"))
    assert "Headrace: the documents" in page.text
    assert page.all("a", **{"href": "/documents/README.md", "aria-current": "page"})


def test_what_a_document_names_is_there_with_its_anchor(browser: httpx.Client) -> None:
    pages = {f"/documents/{name}": seen(browser.get(f"/documents/{name}")) for name in documents.known(".md")}
    ids = {path: {str(found["id"]) for _, found in page.tags if "id" in found} for path, page in pages.items()}
    pictures = {f"/documents/{name}" for name in documents.known(*documents.PICTURES)}
    assert len(pages) > 40
    dead = []
    for path, page in pages.items():
        assert len(page.all("h1")) == 1, path
        named = [str(one["href"]) for one in page.all("a")] + [str(one["src"]) for one in page.all("img")]
        for there in (urljoin(path, one) for one in named):
            target, anchor = urldefrag(there)
            is_there = target in pages or target in pictures or not target.startswith("/documents/")
            if not is_there or (anchor and target in ids and anchor not in ids[target]):
                dead.append((path, there))
    assert not dead
    picture = browser.get("/documents/images/overview.png")
    assert (picture.headers["content-type"], picture.content[1:4]) == ("image/png", b"PNG")


def test_only_documents_are_served(browser: httpx.Client) -> None:
    root = Path(documents.__file__).parents[3]
    assert (root / "pyproject.toml").exists()
    for name in ("../pyproject.toml", "..%2fpyproject.toml", "generate/__main__.py", "guide", "", "guide/nothing.md"):
        assert browser.get(f"/documents/{name}").status_code == 404, name
