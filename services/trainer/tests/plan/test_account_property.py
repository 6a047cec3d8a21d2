"""Whatever becomes of rounds and versions, a model's account names every event of the log once: the real planner, the
real registry, and versions that nobody has trained."""

import itertools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from common.errors import Conflict, InvalidInput
from common.eventlog.sourced_log import SourcedLog
from common.process.health import Health
from common.registry.catalog import ChangeKind
from common.registry.client import RegistryClient
from common.registry.reporting import Report
from services.trainer.plan.planner import Planner
from services.trainer.settings import TrainerSettings
from services.trainer.tests.support.plans import finish
from services.trainer.tests.support.platform_processes import MODEL, STREAM, Events, definition
from testing import plain_http
from testing.registry_server import RegistryServer

_ACTIONS = (
    "append", "append", "look", "look", "good", "good", "bad", "unusable", "fail", "learn", "leave_out", "promote",
    "train", "from", "scratch", "retry", "skip", "kill", "forget",
)  # fmt: skip


class _World:
    """One model on the stream, what is done to it, and its account after each step."""

    def __init__(self, number: int, registry: RegistryServer, client: RegistryClient, events: Events, folder: Path):
        self.model, self._client, self._events = f"{MODEL}-{number}", client, events
        self._url, self._http = f"{registry.url}/v1/models/{self.model}", plain_http.client()
        self._folder, self._chance = folder / str(number), random.Random(number)
        log = f"segments:{folder / 'log'}"
        self._planner_of: Callable[[], Planner] = lambda: Planner(
            TrainerSettings(event_log=log), registry=client, log=SourcedLog(events.log, log),
            health=Health("registry", "event_log"), on_planned=lambda: None,
        )  # fmt: skip
        self._planner = self._planner_of()
        self.apply("retry")

    def apply(self, on_reject: str) -> None:
        text = definition(
            triggers="{min_examples: 10, max_round_examples: 25, cooldown_seconds: 0}",
            gate=f"{{min_value: 0.5, max_regression: null, on_reject: {on_reject}}}",
        )
        files = {"model.yaml": text.replace(f"name: {MODEL}".encode(), f"name: {self.model}".encode())}
        self._client.register_model(self.model, stream=STREAM, files=files, by="test")

    def do(self, action: str) -> None:
        """Refusals are part of it: they must change nothing."""
        match action:
            case "append":
                self._events.add(self._chance.randint(1, 30), partition=self._chance.randint(0, 1))
            case "look":
                self._planner.mark_stale(ChangeKind.RESET, "")
                self._planner.turn()
            case "good" | "bad" | "unusable":
                finish(
                    self._client, self._folder, auc=0.1 if action == "bad" else 0.9, held_out=0.2,
                    unusable=0.34 if action == "unusable" else 0, models=[self.model],
                )  # fmt: skip
            case "fail":
                for found in self._client.list_rounds(self.model, limit=1):
                    self._post(f"/rounds/{found.round_id}:fail", by="ada")
                self._post(":resume", by="ada")
            case "learn" | "leave_out":
                self._post(":rollback", by="ada", events=action)
            case "promote":
                version = self._chance.randint(1, max(1, self._client.get_model(self.model).newest_version))
                self._http.put(f"{self._url}/aliases/production", json={"version": version, "by": "ada"})
            case "train" | "from" | "scratch":
                self._train(action)
            case "forget":
                self._forget()
            case "retry" | "skip":
                self.apply(action)
            case "kill":
                self._planner = self._planner_of()

    def _train(self, start: str) -> None:
        where: Any = {"train": "head", "scratch": "scratch", "from": {0: self._chance.randint(0, 12)}}[start]
        try:
            self._planner.plan_now(self.model, by="ada", reason="", start=where)
        except (Conflict, InvalidInput):
            return

    def _forget(self) -> None:
        """Whole records, or single rows of them."""
        partition, begin = self._chance.randint(0, 1), self._chance.randint(0, 12)
        rows = [] if self._chance.random() < 0.5 else [0, 2]
        pieces = [[partition, begin, begin + (1 if rows else self._chance.randint(1, 6)), rows]]
        try:
            self._client.forget(self.model, {"pieces": pieces, "examples": 2}, by="ada", reason="")
        except (Conflict, InvalidInput):
            return

    def _post(self, path: str, **body: str) -> None:
        self._http.post(f"{self._url}{path}", json=body)

    def check(self) -> None:
        """The account as the registry tells it while the newest report may be of before, and after the next one."""
        self._assert_sound(self._account())
        self.do("look")
        told = Report("t", "trainer", "", 0.0, models={self.model: self._planner.counted()[self.model]})
        self._client.report(told)
        account = self._account()
        self._assert_sound(account)
        assert account["examples"]["total"] == self._events.appended, account

    def _account(self) -> Any:
        return self._http.get(f"{self._url}/account").json()

    def _assert_sound(self, account: Any) -> None:
        counts = account["examples"]
        if counts["total"] is None:
            assert account["problems"] == ["no trainer has reported how far the log goes"]
            return
        assert account["adds_up"], account
        assert counts["total"] == sum(count for name, count in counts.items() if name != "total"), account
        assert min(counts.values()) >= 0, account

    def end(self) -> None:
        """Out of the way of the next one."""
        self._post(":pause", by="test")
        for found in self._client.list_rounds(self.model, limit=1):
            self._post(f"/rounds/{found.round_id}:fail", by="test")
        self._http.close()


@pytest.fixture
def make_world(
    registry_process: RegistryServer, registry: RegistryClient, events: Events, tmp_path: Path
) -> Callable[[], _World]:
    numbers = itertools.count(1)
    events.add(3)
    return lambda: _World(next(numbers), registry_process, registry, events, tmp_path)


@settings(max_examples=8, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(actions=st.lists(st.sampled_from(_ACTIONS), min_size=4, max_size=16))
def test_every_event_is_in_the_account_once_whatever_is_done(
    make_world: Callable[[], _World], actions: list[str]
) -> None:
    world = make_world()
    try:
        for action in actions:
            world.do(action)
            world.check()
    finally:
        world.end()
