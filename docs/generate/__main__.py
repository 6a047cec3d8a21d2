"""Writes every generated page of docs/reference: `python -m docs.generate` (make docs)."""

from pathlib import Path

from docs.generate import settings

_REFERENCE = Path(__file__).parents[1] / "reference"
_PAGES = {"settings.md": settings.document}


def main() -> None:
    for name, document in _PAGES.items():
        (_REFERENCE / name).write_text(document())


if __name__ == "__main__":
    main()
