"""Instances: who is there, what each does and serves, how fast, and what it could not do."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from common.counted import counted
from services.registry.pages import charts
from services.registry.pages.reading import Place, Reading

_CHARTS = ("requests_per_second", "request_p99_seconds", "failed_requests_per_second", "open_requests")
OF_VERSION = (
    "requests_per_second", "request_p50_seconds", "request_p99_seconds", "failed_requests_per_second",
    "runner_private_bytes", "runner_batches_per_second", "runner_examples_per_second",
)  # fmt: skip
"""What the page shows of a version on a replica; other reported numbers do not reach it."""
_MARKED = 12


def page(reading: Reading, place: Place) -> dict[str, Any]:
    instances = reading.instances
    production = {model.name: model.aliases.get("production", 0) for model in reading.catalog.list_models()}
    served = [
        {
            **one,
            "batch": _batch(numbers),
            "instance_id": instance["instance_id"],
            "is_production": production.get(one["model"]) == one["version"],
            "numbers": numbers,
        }
        for instance in instances
        for one in instance["serves"]
        for numbers in (_numbers(instance, one),)
    ]
    return {
        "instances": [{**one, "doing": _doing(one)} for one in instances],
        "served": sorted(
            filter(_is_worth_a_row, served), key=lambda one: (one["model"], -one["version"], one["instance_id"])
        ),
        "queues": _queues(instances),
        "reloads": _reloads(served),
        "sparks": {name: charts.spark(reading.over_time(name, service="serving")) for name in _CHARTS},
        "now": {name: reading.now(name, service="serving") for name in (*_CHARTS, "request_p50_seconds")},
    }


def _is_worth_a_row(one: Mapping[str, Any]) -> bool:
    """What has ended as it should is in the history."""
    return bool(one["state"] != "END" or one["reason"])


def _reloads(served: Sequence[Mapping[str, Any]]) -> list[tuple[float, str]]:
    """When replicas began to answer with a version, the newest moments, of all replicas the first."""
    began: dict[str, float] = {}
    for one in served:
        name = f"{one['model']} {one['version']}"
        if one["since"]:
            began[name] = min(one["since"], began.get(name, one["since"]))
    return sorted(((at, name) for name, at in began.items()), reverse=True)[:_MARKED]


def _numbers(instance: Mapping[str, Any], served: Mapping[str, Any]) -> dict[str, float]:
    for part in instance["parts"]:
        if (part["model"], part["version"]) == (served["model"], served["version"]):
            return {name: part["numbers"][name] for name in OF_VERSION if name in part["numbers"]}
    return {}


def _batch(numbers: Mapping[str, float]) -> float | None:
    """Examples per call of the model since the report before; None while nothing is called."""
    calls, rows = (numbers.get(f"runner_{what}_per_second") for what in ("batches", "examples"))
    return rows / calls if calls and rows is not None else None


def _doing(instance: Mapping[str, Any]) -> str:
    """In words; of a trainer in a cluster its task, and how long its round's members were waited for."""
    does = instance["does"]
    if not does:
        count = sum(one["state"] != "END" for one in instance["serves"])
        idle = {"serving": f"{count} version{'' if count == 1 else 's'}{_in_memory(instance)}", "trainer": "free"}
        return idle.get(instance["service"], "–")
    said = f"{does.get('round_id')}: {does.get('stage')}"
    if does.get("helps"):
        return f"{said}, worker {does.get('rank')} of {does.get('workers')}"
    if does.get("trainers"):
        said += f", leads {does.get('workers')} workers of {', '.join(map(str, does['trainers']))}"
    if team := does.get("asynchronous"):
        said += (
            f", {counted(team.get('servers', 0), 'parameter server')} and {counted(team.get('workers', 0), 'worker')}"
        )
        said += "".join(f"; lost: {one}" for one in team.get("lost", ()))
    elif does.get("workers", 1) > 1 and not does.get("trainers"):
        said += f", {does['workers']} workers of this trainer"
    waits = Counter[str]()
    for member in does.get("members", ()):
        waits.update(member.get("waited_seconds", {}))
    return said + "".join(f"; waited {waits[rank]:.1f} s for worker {rank}" for rank in sorted(waits))


def _in_memory(instance: Mapping[str, Any]) -> str:
    """Of a replica that loads models when they are asked."""
    numbers = instance["numbers"]
    if "loaded_models" not in numbers:
        return ""
    megabytes = numbers["models_private_bytes"] / 1e6
    loaded, evicted = int(numbers["loaded_models"]), int(numbers["evicted_models"])
    return f"; models in memory: {loaded}, {megabytes:.0f} MB; evictions: {evicted}"


def _queues(instances: list[Any]) -> list[dict[str, Any]]:
    """Every front sees the same queues: the largest of what they say."""
    found: dict[str, float] = {}
    for instance in instances:
        for part in instance["parts"]:
            depth = part["numbers"].get("queue_requests")
            if depth is not None:
                found[part["model"]] = max(depth, found.get(part["model"], 0.0))
    return [{"model": model, "depth": depth} for model, depth in sorted(found.items())]
