"""The documents of this release on the pages, from docs/ beside the source: read at each request, without a build,
at addresses whose relative links lead on."""

from pathlib import Path
from typing import Any

import markdown
from markupsafe import Markup

from common.errors import NotFound
from services.registry.pages.reading import Place, Reading

FIRST = "README.md"
PICTURES = (".png", ".svg")
_FOLDER = Path(__file__).parents[3] / "docs"
_TABLE = '<div class="scroll" tabindex="0" role="region" aria-label="Table {}"><table>'
_EXTENSIONS = ("tables", "fenced_code", "sane_lists", "toc")


def known(*endings: str) -> dict[str, Path]:
    """{path below docs/: file} of these kinds; {} where the documents have not come with the program."""
    files = (path for path in sorted(_FOLDER.rglob("*")) if path.suffix in endings)
    return {path.relative_to(_FOLDER).as_posix(): path for path in files}


def page(reading: Reading, place: Place) -> dict[str, Any]:
    name = place.names["document"]
    path = known(".md").get(name)
    if path is None:
        raise NotFound(f"there is no document {name}")
    text = path.read_text()
    heading = next((line[2:] for line in text.splitlines() if line.startswith("# ")), name)
    return {"heading": heading, "is_first": name == FIRST, "body": Markup(_as_html(text))}  # noqa: S704  # our own files


def _as_html(text: str) -> str:
    """Wide tables scroll by themselves, also by keyboard; a heading without words is left out."""
    made = str(markdown.markdown(text, extensions=list(_EXTENSIONS), output_format="html"))
    first, *others = made.replace("<th></th>", "<td></td>").replace("<pre>", '<pre tabindex="0">').split("<table>")
    closed = (part.replace("</table>", "</table></div>") for part in others)
    tables = (_TABLE.format(number) + part for number, part in enumerate(closed, 1))
    return first + "".join(tables)
