"""Rule 7 of the judge: the evidence of rollouts never goes back, counts no label twice and goes on after faults."""

from collections.abc import Iterator, Sequence
from itertools import pairwise

from e2e_tests.faults.history import Entry, EvidenceSeen, Labelled, of_kind
from e2e_tests.faults.violation import Violation


def evidence_goes_on(history: Sequence[Entry]) -> list[Violation]:
    """Rule 7. What the registry has stored is what a judge that starts again goes on from."""
    seen = sorted(of_kind(history, EvidenceSeen), key=lambda item: item.at)
    sent = sorted(of_kind(history, Labelled), key=lambda item: item.at)
    return [*_back(seen), *_twice(seen, sent), *_stopped(seen, sent)]


def _back(seen: Sequence[EvidenceSeen]) -> Iterator[Violation]:
    for before, after in pairwise(seen):
        numbers = [("revision", before.revision, after.revision), ("labelled count", before.labelled, after.labelled)]
        numbers += [(name, count, after.samples.get(name, count)) for name, count in before.samples.items()]
        for what, was, now in numbers:
            if now < was:
                yield Violation(7, f"of the evidence, {what} went from {was} back to {now}", after.at)


def _twice(seen: Sequence[EvidenceSeen], sent: Sequence[Labelled]) -> Iterator[Violation]:
    """No version is measured on more labels than were sent by then."""
    for item in seen:
        most = sum(one.keys for one in sent if one.at <= item.until)
        for name, count in [*item.samples.items(), *item.tracks.items()]:
            if count > most:
                yield Violation(7, f"{name} was measured on {count} labels when {most} had been sent", item.at)


def _stopped(seen: Sequence[EvidenceSeen], sent: Sequence[Labelled]) -> Iterator[Violation]:
    """What was labelled when all was over is in the evidence."""
    if not sent:
        return
    last = sent[-1]
    if not last.is_after:
        yield Violation(7, "no labels were acknowledged when all faults were over", last.at)
        return
    before = max((item.labelled for item in seen if item.until <= last.at), default=0)
    counted = max((item.labelled for item in seen if item.at > last.at), default=0) - before
    if counted < last.keys:
        yield Violation(7, f"of {last.keys} labels that came when all faults were over {counted} were counted", last.at)
