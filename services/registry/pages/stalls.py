"""Standstills without a failure: a round that gets no core, no trainer or no heartbeat, replicas that do
not change over. The pages show it amber, with what to do."""

from dataclasses import dataclass
from urllib.parse import quote

from common.registry.catalog import JsonMap, RoundState
from services.registry.pages.templating import duration

WAITING_SECONDS = 120.0
"""A planned round is taken within a second by a free trainer; by one that ends a round of another model, later."""
_SILENT_SECONDS = 10.0
"""Past the end of its lease; another trainer takes the round at once, where there is one."""
_CHANGING_SECONDS = 120.0
_ADVICE = {
    "starved": "leave the trainer more of the machine; TRAINER_NICE and TRAINER_SCHEDULING set its priority",
    "stalled": "wait, or end it: headrace rounds fail {model}",
}


@dataclass(frozen=True)
class Stall:
    """`word`: for a badge; `link`: where more of it is to be seen."""

    word: str
    sentence: str
    advice: str
    link: str


def stalls_of(model: JsonMap, now: float) -> list[Stall]:
    """Args: model: as GET /v1/overview has it; of it name, open_round, serving, paused and archived."""
    found = _of_round(model, now) if model["open_round"] else None
    return [stall for stall in (found, _of_replicas(model, now)) if stall is not None and not model["archived"]]


def _of_round(model: JsonMap, now: float) -> Stall | None:
    found, link = model["open_round"], f"/rounds?model={quote(model['name'])}"
    name = f"round {found['round_id']}"
    if found["stopped_by"]:
        advice = f"headrace rounds resume {model['name']}"
        return Stall("stopped", f"{name} was stopped by {found['stopped_by']}", advice, link)
    if found["hindrance"]:
        activity = str(found["progress"]["activity"])
        advice = _ADVICE[activity].format(model=model["name"])
        return Stall(activity, f"{name} is {found['hindrance']}", advice, link)
    waited = now - found["planned_at"]
    if found["state"] == RoundState.PLANNED and waited > WAITING_SECONDS and not found["attempts"]:
        sentence = f"{name} has waited {duration(waited)} for a trainer"
        return Stall("waits", sentence, "start another trainer, or see its work: headrace rounds", link)
    silent = now - found["lease_expires_at"]
    if found["state"] == RoundState.RUNNING and silent > _SILENT_SECONDS:
        sentence = f"nothing was heard of {name} since its lease ended {duration(silent)} ago"
        return Stall("silent", sentence, "see whether its trainer is there: headrace status", link)
    return None


def _of_replicas(model: JsonMap, now: float) -> Stall | None:
    serving = model["serving"]
    missing = sorted(set(serving["replicas"]) - set(serving["available"]) - set(serving["failed"]))
    waited = now - serving["moved_at"]
    if not serving["version"] or not missing or waited < _CHANGING_SECONDS:
        return None
    verb = "does" if len(missing) == 1 else "do"
    sentence = (
        f"{', '.join(missing)} {verb} not answer with version {serving['version']}, "
        f"which is production since {duration(waited)}"
    )
    return Stall("changing over", sentence, "see its log: headrace logs serving", f"/models/{quote(model['name'])}")
