"""Rule 8 of the judge: a canary answers exactly the keys of its share, each of its stages is decided once, and a
version that was taken away as canary answers nobody soon after."""

import hashlib
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise

from e2e_tests.faults.history import AliasMove, CanaryMove, CanarySeen, Entry, KeyedAnswer, StageDecided, of_kind
from e2e_tests.faults.liveness import Liveness
from e2e_tests.faults.stream import MODEL
from e2e_tests.faults.violation import Violation

SETTLED_SECONDS = 2.0
"""How long after a stage has begun replicas have heard of it."""
AWAY_SECONDS = 5.0
"""How long a version may still answer, while no fault is about, that was taken away as canary."""


def canaries_keep_to_their_share(history: Sequence[Entry]) -> list[Violation]:
    """Rule 8."""
    return [*_other_sides(history), *_decided_twice(history), *_stages_back(history), *_after_the_end(history)]


def is_canarys(version: int, share: float, key: str) -> bool:
    """By the hash that the guide to serving gives: 64 bits of BLAKE2b of model, version and key, below the share."""
    digest = hashlib.blake2b(f"{MODEL}/{version}/{key}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64 < share / 100


def _other_sides(history: Sequence[Entry]) -> Iterator[Violation]:
    """A canary that answers another key than its own; and production that answers one of the canary's, once replicas
    have it and have heard of the stage, while no fault is about."""
    live, stages, answers = Liveness(history), _stages(history), list(of_kind(history, KeyedAnswer))
    looks = sorted(of_kind(history, CanarySeen), key=lambda one: one.at)
    for answer in answers:
        until = bisect_right(looks, answer.until, key=lambda one: one.at) + 1  # replicas may hear of it before a look
        shares = [seen.share for seen in looks[:until] if seen.version == answer.version]
        is_other = bool(shares) and not is_canarys(answer.version, max(shares), answer.key)
        if is_other and not live.was_live(answer.version, answer.at, answer.until):
            yield Violation(8, f"{_told(answer)} while that was canary of {max(shares):g} %", answer.at)
    for begin, end, seen in stages:
        first = min((one.at for one in answers if one.version == seen.version), default=end)
        settled = max(begin, first) + SETTLED_SECONDS
        for answer in (one for one in answers if settled <= one.at and one.until <= end):
            is_its = is_canarys(seen.version, seen.share, answer.key)
            if is_its and answer.version != seen.version and not live.is_disturbed(begin, answer.until):
                text = f"{_told(answer)} while version {seen.version} was canary of {seen.share:g} %"
                yield Violation(8, text, answer.at)


def _told(answer: KeyedAnswer) -> str:
    return f"key {answer.key} was answered by version {answer.version}"


def _stages(history: Sequence[Entry]) -> list[tuple[float, float, CanarySeen]]:
    """(from, to) between the first and the last look that found the same version at the same stage."""
    found: list[tuple[float, float, CanarySeen]] = []
    for seen in sorted(of_kind(history, CanarySeen), key=lambda one: one.at):
        if not seen.version:
            continue
        if found and (found[-1][2].version, found[-1][2].stage) == (seen.version, seen.stage):
            found[-1] = (found[-1][0], seen.at, found[-1][2])
        else:
            found.append((seen.until, seen.at, seen))
    return found


def _decided_twice(history: Sequence[Entry]) -> Iterator[Violation]:
    decided = Counter((one.version, one.stage) for one in of_kind(history, StageDecided))
    for (version, stage), count in decided.items():
        if count > 1:
            yield Violation(8, f"stage {stage + 1} of canary version {version} was decided {count} times")


def _stages_back(history: Sequence[Entry]) -> Iterator[Violation]:
    """Unless the alias was moved to the version again."""
    again = Counter(move.to_version for move in of_kind(history, CanaryMove))
    stages = [seen for _, _, seen in _stages(history)]
    for before, after in pairwise(stages):
        if before.version == after.version and after.stage < before.stage and again[after.version] < 2:
            yield Violation(8, f"canary version {after.version} went from stage {before.stage + 1} back", after.at)


def _after_the_end(history: Sequence[Entry]) -> Iterator[Violation]:
    live, moves = Liveness(history), sorted(of_kind(history, CanaryMove), key=lambda move: move.at)
    promoted = {move.to_version for move in of_kind(history, AliasMove)}
    for number, move in enumerate(moves):
        gone = move.from_version
        if not gone or gone in promoted or any(later.to_version == gone for later in moves[number:]):
            continue
        for answer in of_kind(history, KeyedAnswer):
            after = answer.at - move.at
            if answer.version == gone and after > AWAY_SECONDS and not live.is_disturbed(move.at, answer.until):
                yield Violation(8, f"version {gone} answered {after:.1f} s after it was canary no more", answer.at)
