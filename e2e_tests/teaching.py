"""Teaching the model of points.py round by round, and asking it all the while."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from e2e_tests import points
from e2e_tests.points import MODEL, PROBES, ROUND_EVENTS, STREAM
from e2e_tests.waiting import until
from headrace import Client, HeadraceError


def judged(client: Client, count: int) -> bool:
    return len(client.versions(MODEL)) >= count


def serves(client: Client, version: int) -> bool:
    """Whether every replica has the version behind production."""
    return all(
        any(
            item["model"] == MODEL and item["version"] == version and "production" in item["aliases"]
            for item in replica["versions"]
        )
        for replica in client.replica_states()
    )


def teach(client: Client, seed: int, *, noise: bool = False, count: int = ROUND_EVENTS) -> None:
    assert client.append(STREAM, points.points(count, seed=seed, noise=noise)).accepted == count


def learn_version(client: Client, number: int) -> None:
    """Sends a round's worth of good events and waits until what came of it is served."""
    teach(client, seed=number)
    until(lambda: judged(client, number), f"version {number} was registered")
    until(lambda: serves(client, number), f"version {number} is served by every replica")


def probabilities(client: Client) -> list[float]:
    """The probability of being above, for each probe."""
    return [_probability(prediction) for prediction in client.predict(MODEL, instances=PROBES)]


def _probability(prediction: object) -> float:
    if isinstance(prediction, dict):
        prediction = prediction["probability"]
    while isinstance(prediction, list):
        prediction = prediction[0]
    assert isinstance(prediction, float)
    return prediction


@contextmanager
def asking(client: Client, threads: int = 4) -> Iterator[list[str]]:
    """Predicts all the while from several connections; yields the list of what failed, with "ok" for each answer."""
    outcomes: list[str] = []
    stop = threading.Event()

    def ask() -> None:
        while not stop.wait(0.01):
            try:
                above, below = probabilities(client)
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
