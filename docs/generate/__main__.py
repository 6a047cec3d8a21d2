"""Writes all that is generated (make docs): the pages, which git ignores, and keras_names.json and scaling.svg."""

from pathlib import Path

from docs.generate import keras_names, names, prose, scaling_plot
from docs.generate.pages import PAGES

_DOCS = Path(__file__).parents[1]


def main() -> None:
    keras_names.TABLE.write_text(keras_names.document())
    for page, document in PAGES.items():
        (_DOCS / page).write_text(document())
    scaling_plot.PLOT.write_text(scaling_plot.document())
    names.check()
    prose.check()


if __name__ == "__main__":
    main()
