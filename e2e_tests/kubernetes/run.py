"""The platform on a real node: installed, asked through Services, upgraded and killed under load, removed."""

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

from e2e_tests.kubernetes import jobs, operators
from e2e_tests.kubernetes.chart import CHART, EXAMPLES, manifests, render, rendered_path
from e2e_tests.kubernetes.cluster import SERVICES, Cluster, is_ready, names
from e2e_tests.kubernetes.report import Report
from e2e_tests.kubernetes.scaling import autoscaled, scaled
from e2e_tests.points import PROBES, ROUND_EVENTS, points
from e2e_tests.teaching import Pupil, await_more
from e2e_tests.waiting import until
from headrace import HeadraceError

_REQUEST_EVENTS = 50
_PAUSE_SECONDS = 0.1
_STEP_SECONDS = 480.0
_SETTLED_SECONDS = 120.0
_FAILOVER_SECONDS = 5.0
_COUNTS = ("predictions", "failed", "asked once", "of them failed", "events")
_OF_OPERATORS = ("ServiceMonitor",)
"""Kinds that a bare cluster does not know."""


class Load:
    """Until it is left: four askers that repeat a prediction which got no answer, as the client does, one asker that
    repeats none, a sender of events that repeats each request under its key, and one that asks the registry."""

    def __init__(self, pupil: Pupil) -> None:
        self._pupil, self._stop = pupil, threading.Event()
        acts = (self._send, self._ask_once, self._ask_registry)
        self._threads = [threading.Thread(target=self._forever, args=(act,)) for act in acts]
        self._door = pupil.client.door("serving", pupil.client.addresses.predictions, timeout_seconds=30)
        self._registry = pupil.client.door("registry", pupil.client.addresses.registry, timeout_seconds=2)
        self._seed = 1000
        self.accepted, self.asked_once = 0, 0
        self.lost: list[str] = []
        self.unanswered: list[str] = []
        self.outcomes: list[str] = []
        self._registry_answered: list[float] = []

    def __enter__(self) -> "Load":
        self._asking = self._pupil.asking()
        self.outcomes = self._asking.__enter__()
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        self._asking.__exit__(None, None, None)

    def counts(self) -> tuple[int, int, int, int, int]:
        """Predictions, those that failed, those that were asked once, those of them without an answer; events."""
        failed = sum(outcome != "ok" for outcome in self.outcomes)
        return len(self.outcomes), failed, self.asked_once, len(self.unanswered), self.accepted

    def registry_away_seconds(self, since: float) -> float:
        """The longest time without an answer of the registry, since a moment of the monotonic clock."""
        answered = [since, *(at for at in self._registry_answered if at > since), time.monotonic()]
        return max(after - before for before, after in pairwise(answered))

    def _forever(self, act: Callable[[], None]) -> None:
        while not self._stop.wait(_PAUSE_SECONDS):
            act()

    def _send(self) -> None:
        self._seed += 1
        try:
            answer = self._pupil.client.append(self._pupil.stream, points(_REQUEST_EVENTS, seed=self._seed))
            self.accepted += answer.accepted
        except HeadraceError as error:
            self.lost.append(f"{type(error).__name__}: {error}")

    def _ask_registry(self) -> None:
        with suppress(HeadraceError):
            self._registry.call("GET", f"/v1/models/{self._pupil.model}", repeatable=False)
            self._registry_answered.append(time.monotonic())

    def _ask_once(self) -> None:
        self.asked_once += 1
        body = json.dumps({"instances": PROBES}).encode()
        try:
            self._door.call("POST", f"/v1/models/{self._pupil.model}:predict", body, repeatable=False)
        except HeadraceError as error:
            self.unanswered.append(f"{type(error).__name__}: {error}")


def run(
    cluster: Cluster, *, next_tag: str, folder: Path, first_chart: Path = CHART, with_operators: Sequence[str] = ()
) -> Report:
    """Needs a node that runs and has the images of both tags. first_chart: what is installed, and upgraded to the chart
    of this tree. with_operators: KEDA and Kueue, or one of them, are there to be installed."""
    report = Report()
    _check_the_chart(cluster, report)
    with report.step("install") as figures:
        cluster.enforce("restricted")
        cluster.chart = first_chart
        cluster.helm("install")
        cluster.chart = CHART
        figures["pods"] = {service: len(cluster.pods(service)) for service in SERVICES}
    with cluster.client() as client:
        pupil = Pupil(client)
        with report.step("first version, through Services"):
            pupil.apply(folder)
            pupil.learn_version(1)
            above, below = pupil.probabilities()
            report.expect(above > 0.5 > below, f"the first version answers {above} and {below}")
        accepted = ROUND_EVENTS + _under_load(cluster, pupil, next_tag, report)
        _account(pupil, accepted, report)
        with report.step("helpers, as a Job") as figures:
            jobs.begin(cluster, "helpers")
            figures["trainers of a round"] = count = jobs.helped_round(cluster, pupil, folder, job="helpers")
            report.expect(count == 2, f"a round that a Job's trainer should help with had {count} trainers")
        autoscaled(cluster, pupil, next_tag, report)
        if with_operators:
            with report.step(f"{' and '.join(with_operators)} installed"):
                operators.install(cluster, with_operators)
        if operators.KEDA in with_operators:
            scaled(cluster, pupil, next_tag, report)
        if operators.KUEUE in with_operators:
            jobs.queued(cluster, pupil, folder, next_tag, report)
    with report.step("uninstall") as figures:
        cluster.uninstall()
        left = names(cluster.get("all,secrets,configmaps,networkpolicies,poddisruptionbudgets"))
        report.expect(not left, f"after the uninstall there are {left}")
        figures["claims left"] = len(cluster.get("persistentvolumeclaims"))
    return report


def _check_the_chart(cluster: Cluster, report: Report) -> None:
    """By Helm and the API server: the kept manifests are what Helm renders, and have no field that Kubernetes lacks."""
    with report.step("chart") as figures:
        for example in EXAMPLES:
            report.expect(render(example) == rendered_path(example).read_text(), f"Helm renders {example} otherwise")
            objects = [
                {**item, "metadata": {**item["metadata"], "namespace": "default"}} for item in manifests(example)
            ]
            known = [item for item in objects if item["kind"] not in _OF_OPERATORS]
            cluster.apply(*known, server_dry_run=True)
            figures[f"objects of {example}"] = len(known)
        try:
            cluster.helm("install", values={"serving": {"replica": 3}})
        except RuntimeError as error:
            (figures["an unknown value"],) = (line for line in str(error).splitlines() if "'replica'" in line)
        else:
            report.broken.append("the chart takes a value that it does not know")


def _under_load(cluster: Cluster, pupil: Pupil, next_tag: str, report: Report) -> int:
    """The number of events that were acknowledged meanwhile."""
    token, has_standby = cluster.token(), cluster.registries > 1
    with Load(pupil) as load:
        await_more(load.outcomes)
        with _watched(report, "rolling upgrade", load):
            cluster.helm("upgrade", values={"image": {"tag": next_tag}})
            _check_upgrade(cluster, next_tag, report)
            report.expect(cluster.token() == token, "the upgrade changed the operator's token")
        for service in SERVICES:
            with _watched(report, f"{service}: SIGKILL", load, may_fail_over=has_standby):
                _strike(cluster, service, cluster.kill)
        for service in ("ingest", "serving", *(["registry"] if has_standby else [])):
            with _watched(report, f"{service}: a pod deleted at once", load, may_fail_over=has_standby):
                _strike(cluster, service, cluster.delete)
    report.expect(not load.lost, f"{len(load.lost)} requests of events failed: {load.lost[:3]}")
    return load.accepted


@contextmanager
def _watched(report: Report, name: str, load: Load, *, may_fail_over: bool = False) -> Iterator[None]:
    """Goes on until predictions are answered afterwards, and writes down what came meanwhile. may_fail_over: a registry
    stands by, which takes over within the promised time."""
    before, began = load.counts(), time.monotonic()
    with report.step(name) as figures:
        yield
        await_more(load.outcomes)
        counts = [after - earlier for after, earlier in zip(load.counts(), before, strict=True)]
        figures |= dict(zip(_COUNTS, counts, strict=True))
        away = figures["registry away s"] = round(load.registry_away_seconds(began), 2)
        if may_fail_over:
            report.expect(away <= _FAILOVER_SECONDS, f"{name}: the registry was away for {away} s")
        report.expect(not figures["failed"], f"{name}: predictions failed: {sorted(set(load.outcomes) - {'ok'})[:3]}")


def _strike(cluster: Cluster, service: str, strike: Callable[[Mapping[str, Any]], None]) -> None:
    """Takes one container of the service away, of registries that leads; returns when as many as before have started,
    and as many are ready."""
    pods = sorted(cluster.pods(service), key=is_ready, reverse=True)
    ready_count = sum(map(is_ready, pods))
    strike(pods[0])

    def is_whole() -> bool:
        now = cluster.pods(service)
        is_as_ready = sum(map(_is_started, now)) == len(pods) and sum(map(is_ready, now)) >= ready_count
        return is_as_ready and _container(pods[0]) not in map(_container, now)

    until(is_whole, f"{service} was whole again", timeout_seconds=_STEP_SECONDS)


def _container(pod: Mapping[str, Any]) -> str:
    """The id of its one container, "" while there is none."""
    (status,) = pod["status"].get("containerStatuses") or [{}]
    return str(status.get("containerID", ""))


def _is_started(pod: Mapping[str, Any]) -> bool:
    """Whether its one container runs and has passed its startup probe: a registry that stands by has."""
    (status,) = pod["status"].get("containerStatuses") or [{}]
    return bool(status.get("started"))


def _check_upgrade(cluster: Cluster, tag: str, report: Report) -> None:
    """Every pod has the new image, and the registry's came first."""
    started: dict[str, list[str]] = {}
    for service in SERVICES:
        for pod in cluster.pods(service):
            (container,) = pod["status"]["containerStatuses"]
            report.expect(container["image"].endswith(f":{tag}"), f"{service} runs {container['image']}")
            started.setdefault(service, []).append(container["state"]["running"]["startedAt"])
    first = min(started.pop("registry"))
    early = [service for service, times in started.items() if min(times) < first]
    report.expect(not early, f"upgraded before the registry: {early}")


def _account(pupil: Pupil, accepted: int, report: Report) -> None:
    """Trains what is left; then the account names every event that was acknowledged, once."""
    with report.step("account") as figures:

        def is_settled() -> bool:
            pupil.train_the_rest()
            examples = pupil.client.account(pupil.model)["examples"]  # as of the trainer's last report
            return bool(examples["waiting"] == 0 and examples["total"] >= accepted)

        with suppress(AssertionError):  # the figures below say what is missing
            until(is_settled, "every event was trained on or held out", timeout_seconds=_SETTLED_SECONDS)
        account = pupil.client.account(pupil.model)
        figures |= {
            **account["examples"],
            "acknowledged": accepted,
            "versions": len(pupil.client.versions(pupil.model)),
        }
        report.expect(not account["problems"], f"the account has problems: {account['problems']}")
        parts = {name: count for name, count in account["examples"].items() if name != "total"}
        report.expect(
            accepted == account["examples"]["total"] == sum(parts.values()),
            f"{accepted} events were acknowledged, and the account is {account['examples']}",
        )
