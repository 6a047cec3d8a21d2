"""How far a round is, what keeps it from going on, and why events wait: in the words of command line and pages."""

from collections.abc import Mapping
from typing import Any

from common.counted import counted, is_or_are
from common.registry.catalog import LEARN, Round, RoundState

JUDGED_ON = "judged on"
"""How the reason of a verdict begins that says the size of what it rests on."""


def progress_of(found: Round) -> str:
    """How far an open round is; "" where it has ended."""
    progress: Mapping[str, Any] = found.progress if isinstance(found.progress, Mapping) else {}
    if found.state is RoundState.PLANNED:
        return "waits for a trainer"
    if found.state is not RoundState.RUNNING:
        return ""
    done, rate = int(progress.get("examples_done") or 0), float(progress.get("examples_per_second") or 0.0)
    count = found.plan.example_count
    far = f": {done:,} of {count:,} events" if done else ""
    return f"{stage_of(progress)}{far}{f', {rate:,.0f} a second' if rate and far else ''}"


def stage_of(progress: Mapping[str, Any]) -> str:
    """The stage of a round or rebuild, with the pass where it makes several: "train, pass 2 of 10"."""
    passes = int(progress.get("passes") or 0)
    of_pass = f", pass {progress.get('pass_number')} of {passes}" if passes > 1 else ""
    return f"{progress.get('stage') or 'leased'}{of_pass}"


def hindrance_of(found: Round) -> str:
    """ "" where the round moves, or does not run."""
    progress: Mapping[str, Any] = found.progress if isinstance(found.progress, Mapping) else {}
    if found.state is not RoundState.RUNNING:
        return ""
    used = f"{_seconds(progress, 'cpu_seconds')} of processor time in {_seconds(progress, 'wall_seconds')}"
    if progress.get("activity") == "starved":
        return f"starved: {used}; it waits for a core for {_seconds(progress, 'starved_seconds')} of them"
    if progress.get("activity") == "stalled":
        return f"stalled: nothing new for {_seconds(progress, 'silent_seconds')}, and it uses no core ({used})"
    return ""


def regrouped_of(found: Round) -> str:
    """Why the round went on with other processes; "" where it never did."""
    progress: Mapping[str, Any] = found.progress if isinstance(found.progress, Mapping) else {}
    regrouped = progress.get("regrouped") or {}
    times = int(regrouped.get("times", 0))
    if not times:
        return ""
    return f"went on with other processes {times} time{'' if times == 1 else 's'}: {regrouped.get('because', '')}"


def rolled_back_words(events: str, examples: int) -> str:
    """What becomes of events that only versions have learned that production was moved back from."""
    known = f"{counted(examples, 'event')} that only rolled-back versions have learned"
    if events == LEARN:
        return f"{known} {'waits' if examples == 1 else 'wait'}: the next round learns {_them(examples)} again"
    return f"{known} {is_or_are(examples)} left out: no version learns {_them(examples)}"


def waiting_words(judged: Mapping[str, int]) -> list[str]:
    """A sentence for each reason why events that were in a round wait.

    Args:
        judged: {a reason to leave out (common/registry/catalog.py): examples}.
    """
    sentences = []
    for reason, examples in sorted(judged.items()):
        if not examples:
            continue
        if reason == "rollback":
            sentences.append(rolled_back_words(LEARN, examples))
            continue
        wait = f"{counted(examples, 'event')} {'waits' if examples == 1 else 'wait'}"
        kind = {"canary": "a canary that was taken away", "held": "a version that was held back"}.get(reason, "")
        of = kind or "a round that was rejected"
        sentences.append(f"{wait}, of {of}: the next round judges {_them(examples)} again, with what follows")
    return sentences


def _them(examples: int) -> str:
    return "it" if examples == 1 else "them"


def _seconds(progress: Mapping[str, Any], name: str) -> str:
    return f"{float(progress.get(name, 0.0)):.0f} s"
