"""A log is one chain: whatever is done to an entry or to their order shows, and where."""

import json
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import DataLoss
from common.registry.audit import EMPTY, FIRST, Head, canonical, digest_of, head_of, line_after, verify_chain

Tamper = Callable[[list[str]], object]


def log(count: int = 5) -> list[str]:
    lines, head = [], EMPTY
    for number in range(count):
        lines.append(line_after(head, {"by": "änn", "action": "set_alias", "version": number, "reason": 'a "quote"\n'}))
        head = head_of(lines[-1])
    return lines


def test_a_whole_log_is_unbroken_and_so_is_each_part_of_it() -> None:
    lines = log()
    head = verify_chain(lines)
    assert head == Head(5, json.loads(lines[-1])["digest"])
    assert verify_chain([]) == Head(0, FIRST)
    assert verify_chain(lines[2:], after=head_of(lines[1]).digest) == head


def sealed_again(line: str, **changes: object) -> str:
    """By somebody who knows the format."""
    entry = {**json.loads(line), **changes}
    return canonical({**entry, "digest": digest_of(entry)})


@pytest.mark.parametrize(
    ("tamper", "words"),
    [
        (lambda lines: lines.__setitem__(2, lines[2].replace("änn", "eve")), "line 3 .entry 3. was changed"),
        (lambda lines: lines.__setitem__(2, sealed_again(lines[2], by="eve")), "line 4 .* does not follow entry 3"),
        (lambda lines: lines.__setitem__(2, lines[2].replace(",", ", ", 1)), "line 3 .entry 3. was changed"),
        (lambda lines: lines.__setitem__(2, '{"by":"eve",' + lines[2][1:]), "line 3 .entry 3. was changed"),
        (lambda lines: lines.pop(2), "line 3 .entry 4. does not follow entry 2"),
        (lambda lines: lines.pop(0), "line 1 .entry 2. does not follow the beginning"),
        (lambda lines: lines.insert(2, lines[2]), "line 4 .entry 3. does not follow entry 3"),
        (lambda lines: lines.insert(2, sealed_again(lines[2], by="eve")), "line 4 .entry 3. does not follow"),
        (lambda lines: lines.reverse(), "line 2 .entry 4. does not follow entry 5"),
        (lambda lines: lines.__setitem__(slice(1, 3), [lines[2], lines[1]]), "line 2 .* does not follow entry 1"),
        (lambda lines: lines.insert(1, ""), "line 2 is no entry"),
        (lambda lines: lines.insert(1, "[" * 100_000), "line 2 is no entry"),
        (lambda lines: lines.insert(1, '{"sequence":"1","digest":"","previous":""}'), "line 2 is no entry"),
    ],
)  # fmt: skip
def test_what_was_done_to_a_log_shows_and_where(tamper: Tamper, words: str) -> None:
    lines = log()
    tamper(lines)
    with pytest.raises(DataLoss, match=words):
        verify_chain(lines)


@given(st.dictionaries(st.text("abc_", min_size=1), st.text() | st.integers(-(2**53) + 1, 2**53 - 1) | st.booleans()))
def test_a_line_is_canonical_whatever_is_in_it(entry: dict[str, object]) -> None:
    """RFC 8785, section 3.2: parsed and written again it is the same, and its keys are sorted."""
    line = line_after(EMPTY, entry)
    assert canonical(json.loads(line)) == line
    assert list(json.loads(line)) == sorted(json.loads(line))
    assert verify_chain([line]).sequence == 1


def pruned_log(**changes: object) -> list[str]:
    """Entries 3 to 5 of five, and one that says that those before were pruned."""
    lines = log()
    said = {"action": "prune_audit", "by": "registry", "through": 2, "removed": head_of(lines[1]).digest, **changes}
    return [*lines[2:], line_after(head_of(lines[-1]), said)]


def test_a_pruned_log_is_unbroken_where_it_says_what_was_removed() -> None:
    lines = pruned_log()
    assert verify_chain(lines) == head_of(lines[-1])
    for broken in (lines[1:], lines[:-1], pruned_log(through=1), pruned_log(removed=FIRST), pruned_log(action="other")):
        with pytest.raises(DataLoss, match=r"line 1 .entry [34]. does not follow the beginning"):
            verify_chain(broken)
