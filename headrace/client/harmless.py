"""Texts of authors and strangers without what a terminal obeys in place of showing it."""

import re

_OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Controls but line feeds and tabs, marks that turn text around, and halves of a pair, which cannot be written."""


def harmless(text: str) -> str:
    """The text with U+FFFD for each such character."""
    return _OBEYED.sub("\ufffd", text)


def harmless_json(text: str) -> str:
    """The same of JSON, whose value stays: each such character is escaped."""
    return _OBEYED.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
