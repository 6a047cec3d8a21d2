"""Instances: the work, served versions, speed and faults of each."""

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
"""The numbers of a version on a replica that the page shows."""
_MARKED = 12


def page(reading: Reading, place: Place) -> dict[str, Any]:
    instances = reading.instances
    production = {model.name: model.aliases.get("production", 0) for model in reading.catalog.list_models()}
    served = [
        {
            **version,
            "batch": _batch(numbers),
            "instance_id": instance["instance_id"],
            "is_production": production.get(version["model"]) == version["version"],
            "numbers": numbers,
        }
        for instance in instances
        for version in instance["serves"]
        for numbers in (_numbers(instance, version),)
    ]
    return {
        "instances": [{**instance, "doing": _doing(instance)} for instance in instances],
        "served": sorted(
            (row for row in served if row["state"] != "END" or row["reason"]),  # else it is in the history
            key=lambda row: (row["model"], -row["version"], row["instance_id"]),
        ),
        "queues": _queues(instances),
        "reloads": _reloads(served),
        "sparks": {name: charts.spark(reading.over_time(name, service="serving")) for name in _CHARTS},
        "now": {name: reading.now(name, service="serving") for name in (*_CHARTS, "request_p50_seconds")},
    }


def _reloads(served: Sequence[Mapping[str, Any]]) -> list[tuple[float, str]]:
    """When replicas began to answer with a version, the newest moments, of all replicas the first."""
    began: dict[str, float] = {}
    for row in served:
        name = f"{row['model']} {row['version']}"
        if row["since"]:
            began[name] = min(row["since"], began.get(name, row["since"]))
    return sorted(((at, name) for name, at in began.items()), reverse=True)[:_MARKED]


def _numbers(instance: Mapping[str, Any], served: Mapping[str, Any]) -> dict[str, float]:
    for part in instance["parts"]:
        if (part["model"], part["version"]) == (served["model"], served["version"]):
            return {name: part["numbers"][name] for name in OF_VERSION if name in part["numbers"]}
    return {}


def _batch(numbers: Mapping[str, float]) -> float | None:
    """Examples per call of the model since the report before; None while nothing is called."""
    calls, rows = (numbers.get(f"runner_{unit}_per_second") for unit in ("batches", "examples"))
    return rows / calls if calls and rows is not None else None


def _doing(instance: Mapping[str, Any]) -> str:
    """In words; of a trainer in a cluster its task, and how long its round's members were waited for."""
    does = instance["does"]
    if not does:
        count = sum(version["state"] != "END" for version in instance["serves"])
        idle = {"serving": f"{count} version{'' if count == 1 else 's'}{_in_memory(instance)}", "trainer": "free"}
        return idle.get(instance["service"], "–")
    words = f"{does.get('round_id')}: {does.get('stage')}"
    if does.get("helps"):
        return f"{words}, worker {does.get('rank')} of {does.get('workers')}"
    if does.get("trainers"):
        words += f", leads {does.get('workers')} workers of {', '.join(map(str, does['trainers']))}"
    if team := does.get("asynchronous"):
        words += (
            f", {counted(team.get('servers', 0), 'parameter server')} and {counted(team.get('workers', 0), 'worker')}"
        )
        words += "".join(f"; lost: {lost}" for lost in team.get("lost", ()))
    elif does.get("workers", 1) > 1 and not does.get("trainers"):
        words += f", {does['workers']} workers of this trainer"
    waits = Counter[str]()
    for member in does.get("members", ()):
        waits.update(member.get("waited_seconds", {}))
    return words + "".join(f"; waited {waits[rank]:.1f} s for worker {rank}" for rank in sorted(waits))


def _in_memory(instance: Mapping[str, Any]) -> str:
    """Of a replica that loads models on demand."""
    numbers = instance["numbers"]
    if "loaded_models" not in numbers:
        return ""
    megabytes = numbers["models_private_bytes"] / 1e6
    loaded, evicted = int(numbers["loaded_models"]), int(numbers["evicted_models"])
    return f"; models in memory: {loaded}, {megabytes:.0f} MB; evictions: {evicted}"


def _queues(instances: list[Any]) -> list[dict[str, Any]]:
    """Every front sees the same queues: the largest reported depth."""
    found: dict[str, float] = {}
    for instance in instances:
        for part in instance["parts"]:
            depth = part["numbers"].get("queue_requests")
            if depth is not None:
                found[part["model"]] = max(depth, found.get(part["model"], 0.0))
    return [{"model": model, "depth": depth} for model, depth in sorted(found.items())]
