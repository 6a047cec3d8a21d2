"""Words that make a reader look back for the noun which they stand for, in README, docs and what docs/reference quotes:
commands' help, settings, flags, metrics. `prose_allowed.tsv` counts what is left by page and rule, and only shrinks.

Vale has rules of this kind, but its packages fetch a binary from elsewhere when they are installed.
"""

import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

_ROOT = Path(__file__).parents[2]
_ALLOWED = Path(__file__).parent / "prose_allowed.tsv"
_BEFORE_ONE = "the|an?|this|that|another|other|which|every|each|no|newer|older|new|old|own|first|last|next|whole"
_AFTER_ONE = "that|which|who|whose|is|are|was|has|have|can|may|before|behind|after|as|by|for|from|in|on|with|and|or|to"
RULES: Mapping[str, re.Pattern[str]] = {
    name: re.compile(pattern, re.IGNORECASE)
    for name, pattern in {
        "a noun in place of a pronoun": r"\b(?:whoever|whichever|whatever|nobody|somebody)\b",
        "the number, or `this many`": r"\bso (?:many|much|long|often)\b",
        "the verb in the present": r"\b(?:said|told)\b",
        "separate, or the noun": r"\bof (?:its|their) own\b",
        "the noun in place of `one`": (
            rf"(?<!`)\bones\b|\b(?:{_BEFORE_ONE}) one\b(?=\W*$|[^\w ]| (?:{_AFTER_ONE})\b)"
            r"|\bone (?=(?:that|which|who|whose|where|without)\b)"
            r"|\bone(?='s\b|[,;:.|)]| \|)"
        ),
    }.items()
}
"""{what to write: what is found}"""


def pages() -> list[Path]:
    named = [_ROOT / "README.md", _ROOT / "CONTRIBUTING.md", *sorted((_ROOT / "docs").rglob("*.md"))]
    return [page for page in named if page.name != "coverage.md"]


def found_in(text: str) -> Iterator[tuple[int, str, str]]:
    """(line, rule, words)"""
    for number, line in enumerate(text.splitlines(), 1):
        for rule, pattern in RULES.items():
            yield from ((number, rule, match[0]) for match in pattern.finditer(line))


def judge(
    texts: Mapping[str, str], allowed: Mapping[tuple[str, str], int]
) -> tuple[list[str], Counter[tuple[str, str]]]:
    """Lines to print, of pages with more than is allowed; and what is allowed from now on.

    Args:
        texts: by page.
        allowed: by (page, rule).
    """
    faults, left = list[str](), Counter[tuple[str, str]]()
    for page, text in texts.items():
        places = list(found_in(text))
        for rule, count in Counter(rule for _, rule, _ in places).items():
            left[page, rule] = min(count, allowed.get((page, rule), 0))
            if count > left[page, rule]:
                faults += [f"{page}:{line}: {words!r}: {rule}" for line, of, words in places if of == rule]
    return faults, left


def _read(lines: Iterable[str]) -> dict[tuple[str, str], int]:
    rows = (line.split("\t") for line in lines)
    return {(page, rule): int(count) for page, rule, count in rows}


def check() -> None:
    """Ends the process with status 1, and each place, where a page has more than it may; writes what is left."""
    texts = {str(page.relative_to(_ROOT)): page.read_text() for page in pages()}
    faults, left = judge(texts, _read(_ALLOWED.read_text().splitlines()))
    _ALLOWED.write_text("".join(f"{page}\t{rule}\t{count}\n" for (page, rule), count in sorted(left.items()) if count))
    if faults:
        sys.exit("\n".join([*faults, f"of these pages {_ALLOWED.name} allows fewer such words"]))
