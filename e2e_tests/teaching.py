"""A model of points.py under names of its own: taught round by round, and asked all the while."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from e2e_tests.points import MODEL, PROBES, ROUND_EVENTS, STREAM, points, write_definition
from e2e_tests.waiting import until
from headrace import Client, Conflict, HeadraceError


@dataclass(frozen=True)
class Pupil:
    """One model and its stream on one platform; tests that share a platform give each its own names."""

    client: Client
    stream: str = STREAM
    model: str = MODEL

    def seen_by(self, client: Client) -> "Pupil":
        """The same through another client: after replicas came, went or were started again."""
        return replace(self, client=client)

    def beside(self, suffix: str) -> "Pupil":
        """Another model on the same stream."""
        return replace(self, model=f"{self.model}-{suffix}")

    def apply(self, folder: Path, *, passes: int = 1, shards: int = 1) -> None:
        """Registers the stream and the model."""
        write_definition(folder, stream=self.stream, model=self.model, passes=passes, shards=shards)
        self.client.apply(folder)

    def teach(self, seed: int, *, noise: bool = False, count: int = ROUND_EVENTS) -> None:
        assert self.client.append(self.stream, points(count, seed=seed, noise=noise)).accepted == count

    def learn_version(self, number: int) -> None:
        """Sends a round's worth of good events and waits until what came of it is served."""
        self.teach(seed=number)
        self.await_judged(number)
        self.await_served(number)

    def is_judged(self, count: int) -> bool:
        return len(self.client.versions(self.model)) >= count

    def is_served(self, version: int) -> bool:
        """Whether every replica has the version behind production."""
        return all(
            any(
                item["model"] == self.model and item["version"] == version and "production" in item["aliases"]
                for item in replica["versions"]
            )
            for replica in self.client.replica_states()
        )

    def await_judged(self, count: int) -> None:
        until(lambda: self.is_judged(count), f"version {count} of {self.model} was registered")

    def await_served(self, version: int) -> None:
        until(lambda: self.is_served(version), f"version {version} of {self.model} is served by every replica")

    def is_training(self) -> bool:
        """Whether the one trainer is in the middle of a round."""
        attempt = self.client.trainer_status()["attempt"]
        return bool(attempt) and attempt["model"] == self.model and attempt["progress"]["stage"] == "train"

    def train_the_rest(self) -> None:
        """Asks for a round of what no round has taken."""
        until(lambda: not self.has_open_round(), "no round is open")
        try:
            self.client.train(self.model, reason="the rest")
        except Conflict:
            return  # nothing was left, or a trigger was quicker

    def has_open_round(self) -> bool:
        return any(item.state in ("planned", "running") for item in self.client.rounds(self.model, limit=1))

    def covered_events(self) -> int:
        """Events in the ranges of the chain of parents that ends at production."""
        total, current = 0, self.client.aliases(self.model).get("production", 0)
        versions = {item.version: item for item in self.client.versions(self.model)}  # asked after it: it is among them
        while current:
            total += versions[current].events_trained + versions[current].events_held_out
            current = versions[current].parent_version
        return total

    def probabilities(self) -> list[float]:
        """The probability of being above, for each probe."""
        return [_probability(prediction) for prediction in self.client.predict(self.model, instances=PROBES)]

    @contextmanager
    def asking(self, threads: int = 4, *, pause_seconds: float = 0.05) -> Iterator[list[str]]:
        """Predicts all the while from several connections; yields the list of what failed, with "ok" for each
        answer."""
        outcomes: list[str] = []
        stop = threading.Event()

        def ask() -> None:
            while not stop.wait(pause_seconds):  # some 70 a second by four threads: at five times that they take a core
                try:
                    above, below = self.probabilities()
                    outcomes.append("ok" if above > 0.5 > below else f"answered {above}, {below}")
                except HeadraceError as error:
                    outcomes.append(f"{type(error).__name__}: {error}")

        askers = [threading.Thread(target=ask) for _ in range(threads)]
        for asker in askers:
            asker.start()
        try:
            yield outcomes
        finally:
            stop.set()
            for asker in askers:
                asker.join(timeout=60)


def await_more(outcomes: list[str], count: int = 20) -> None:
    """Until so many more predictions have come to an end."""
    goal = len(outcomes) + count
    until(lambda: len(outcomes) >= goal, "predictions are answered")


def _probability(prediction: object) -> float:
    if isinstance(prediction, dict):
        prediction = prediction["probability"]
    while isinstance(prediction, list):
        prediction = prediction[0]
    assert isinstance(prediction, float)
    return prediction
