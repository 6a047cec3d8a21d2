"""Writes all that is generated (make docs): the pages, which git ignores, and keras_names.json. Then
looks at the documents: the files that they name (`common/errors.py`, `services/trainer/`), and their words."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from docs.generate import keras_names, prose
from docs.generate.pages import PAGES

_DOCS = Path(__file__).parents[1]
_PATH = re.compile(r"`((?:[\w.-]+/)+[\w.*-]*)`")


def main() -> None:
    keras_names.TABLE.write_text(keras_names.document())
    for page, document in PAGES.items():
        (_DOCS / page).write_text(document())
    if missing := list(_missing()):
        sys.exit("docs: these are named and not there:\n  " + "\n  ".join(missing))
    prose.check()


def _missing() -> Iterator[str]:
    """Names whose first folder is not ours are of another project."""
    root = _DOCS.parent
    ours = {path.name for path in root.iterdir() if path.is_dir()} - {"build", "data"}
    for page in prose.pages():
        for name in _PATH.findall(page.read_text()):
            if name.split("/")[0] in ours and not list(root.glob(name.rstrip("/"))):
                yield f"{page.relative_to(root)}: {name}"


if __name__ == "__main__":
    main()
