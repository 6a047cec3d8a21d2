"""Keys of a plan's configuration under which notes stand: what a round was planned from, beside what its digest names.

A note that `_NOTES` lacks would count as configuration.
"""

from collections.abc import Mapping
from typing import Any

SKIPPED = "skipped"
"""Ranges that are left out (`ranges_as_json`): those of a rejected round where the rule says on_reject: skip, or
records that the log no longer keeps."""
LEFT_OUT = "left_out"
"""Beside SKIPPED, the same ranges with what was counted in them and why: [{"partition", "from_offset", "to_offset",
"examples": a number or null, "reason"}]. Reasons: retention, rejection, rollback, canary, held, failed, chosen."""
FROM_SCRATCH = "from_scratch"
"""`true`: it learns from nothing although there are versions."""
HEAD_BEFORE = "head_before"
"""Beside FROM_SCRATCH: the head of the model when the round was planned."""
EVENTS_FROM = "events_from"
"""By partition, the record from which on windows of events may have events (a definition's event_window)."""
WINDOW = "window"
"""Ranges of ancestors (`ranges_as_json`): where the round's own held-out examples are few, candidate and parent are
judged on the newest examples held out there as well.

Under the same key a version's `evaluation` says on what it was judged: {"examples": how many, "earlier": those of them
from before the round, "unusable": held out there and not readable today, "ranges": where the earlier examples are, and
"own_set": how many where the definition has its own examples (evaluation.examples)}."""
LABELS = "labels"
"""Which labels are joined to its events (services/trainer/plan/drafts.py)."""
SKEW = "skew"
"""Its round compares logged answers of its parent (gate: max_skew)."""
FIRED = "fired"
"""{trigger that held: why, with its numbers}; a round by hand has none."""
UPSTREAM_VERSION = "upstream"
"""{triggers.upstream: its version in production, 0 where it has none}."""
SHIFT = "shift"
"""How the events of a window have shifted (services/trainer/plan/shifts.py), where that made the round due."""
SCORES_ALARM = "scores"
"""How production's answers have shifted (services/trainer/live/scores.py, Scores.shown), once they have."""
QUALITY_ALARM = "quality"
"""Production's live quality (services/trainer/live/evidence.py, Decline.shown), once it has alarmed."""
FORGOTTEN = "forgotten"
"""Places in its ranges that it leaves out (`Forgotten.as_json`); also the reason why the account has them left out."""
PUSHED = "pushed"
"""Also the trigger of a plan that no round trains: its version was made elsewhere
(services/registry/versions/pushed.py)."""
_NOTES = frozenset({
    SKIPPED, LEFT_OUT, FROM_SCRATCH, HEAD_BEFORE, EVENTS_FROM, WINDOW, LABELS, SKEW, FIRED, UPSTREAM_VERSION, SHIFT,
    SCORES_ALARM, QUALITY_ALARM, FORGOTTEN, PUSHED, "requested", "drift",
})  # fmt: skip
ALLOW_SIGNATURE_CHANGE = "allow_signature_change"
"""In a plan's `requested`: the version of this round may break the signatures of the version before it."""


def without_notes(configuration: Mapping[str, Any]) -> dict[str, Any]:
    """What `configuration_digest` is of."""
    return {key: value for key, value in configuration.items() if key not in _NOTES}
