"""The form of the registry's audit log: JSON lines, each entry with the SHA-256 of the entry before, so that a change
anywhere breaks the chain from there on. The registry writes it; each holder of a copy can verify it.

A line is its entry in the canonical form of RFC 8785 (JCS): sorted keys, no blanks, UTF-8. Entries have ASCII keys,
text, and whole numbers below 2**53 alone, for which Python's writer gives that form. `digest` is the SHA-256, in hex,
of the line without it.
"""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from common.errors import DataLoss
from common.registry.catalog import JsonMap

PRUNED = "prune_audit"
"""The action of an entry that says which were removed before the first: up to `through`, whose digest was `removed`."""
FIRST = "0" * 64
"""What the first entry names as the digest of its predecessor."""


@dataclass(frozen=True)
class Head:
    """The newest entry; kept elsewhere, its digest shows a log that was cut off or written anew."""

    sequence: int
    digest: str


EMPTY = Head(0, FIRST)


def canonical(entry: JsonMap) -> str:
    return json.dumps(entry, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def digest_of(entry: JsonMap) -> str:
    """Of the entry without its own `digest`."""
    rest = {key: value for key, value in entry.items() if key != "digest"}
    return hashlib.sha256(canonical(rest).encode()).hexdigest()


def line_after(head: Head, entry: JsonMap) -> str:
    """The line of the entry that follows."""
    chained = {**entry, "sequence": head.sequence + 1, "previous": head.digest}
    return canonical({**chained, "digest": digest_of(chained)})


def head_of(line: str) -> Head:
    entry = json.loads(line)
    return Head(entry["sequence"], entry["digest"])


def verify_chain(lines: Iterable[str], *, after: str = FIRST) -> Head:
    """The head of an unbroken log; EMPTY for a log without entries. The first entries may be missing where a later
    entry says that the registry has pruned them.

    Args:
        after: digest of the entry before the first line, for a part of a log.

    Raises:
        DataLoss: an entry was changed, removed, inserted or moved; the sentence names the first such place.
    """
    head, pruned = Head(0, after), None
    for number, line in enumerate(lines, start=1):
        entry = _entry(number, line)
        digest, sequence = entry["digest"], entry["sequence"]
        if digest != digest_of(entry) or canonical(entry) != line:
            raise DataLoss(f"line {number} (entry {sequence}) was changed: its digest is not that of its content")
        if number == 1 and after == FIRST and sequence > 1:
            head = pruned = Head(sequence - 1, entry["previous"])
        if entry.get("action") == PRUNED and pruned == _removed(entry):
            pruned = None
        if entry["previous"] != head.digest or sequence != (head.sequence + 1 if head.sequence else sequence):
            before = f"entry {head.sequence}" if head.sequence else "the beginning"
            raise DataLoss(f"line {number} (entry {sequence}) does not follow {before}: entries were removed or moved")
        head = Head(sequence, digest)
    if pruned:
        first = f"line 1 (entry {pruned.sequence + 1})"
        raise DataLoss(
            f"{first} does not follow the beginning: entries were removed or moved, and none says who pruned"
        )
    return head


def _removed(entry: JsonMap) -> Head:
    return Head(entry.get("through", 0), entry.get("removed", ""))


def _entry(number: int, line: str) -> dict[str, Any]:
    try:
        entry = json.loads(line)
        is_entry = isinstance(entry, dict) and {"digest", "previous", "sequence"} <= entry.keys()
    except (ValueError, RecursionError):
        is_entry = False
    if not is_entry or type(entry["sequence"]) is not int:
        raise DataLoss(f"line {number} is no entry of an audit log: {line[:80]!r}")
    return dict(entry)
