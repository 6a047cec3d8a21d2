"""Every file that a document names exists: `common/errors.py`, `services/trainer/plan/`."""

import re
from pathlib import Path

_ROOT = Path(__file__).parents[2]
_PATH = re.compile(r"`((?:[\w.-]+/)+[\w.*-]*)`")


def check() -> None:
    """Raises SystemExit with each name that leads nowhere. Names whose first folder is not ours are somebody else's."""
    pages = (*_ROOT.glob("docs/**/*.md"), _ROOT / "README.md", _ROOT / "CONTRIBUTING.md")
    ours = {path.name for path in _ROOT.iterdir() if path.is_dir()} - {"build", "data"}
    missing = [
        f"{page.relative_to(_ROOT)}: {name}"
        for page in sorted(pages)
        for name in _PATH.findall(page.read_text())
        if name.split("/")[0] in ours and not list(_ROOT.glob(name.rstrip("/")))
    ]
    if missing:
        raise SystemExit("docs: these files are not there:\n  " + "\n  ".join(missing))
