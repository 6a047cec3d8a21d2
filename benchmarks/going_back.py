"""A version that turns out worse than its predecessor: how soon every replica answers with the good one again, and
what the shadow costs by which it was found.

    python -m benchmarks.going_back [--versions 3] [--replicas 2] [--rate 100] [--seconds 10] [--turns 3]

The platform of `python -m examples.bad_version`: rounds learn inverted labels and pass their gate, and labels that come
by key contradict them. The crossing is when the log took the label that made the judge sure. Each replica is asked all
the time which version answers.

Before the labels come, keyed predictions are asked at a fixed rate in turns: of the alias, so that each is scored on
the predecessor as well, and of the same version by its number, which has no shadow.
"""

import argparse
import http.client
import json
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np

from benchmarks.report import Cell, publish
from benchmarks.serving_load.open_loop import OpenLoop, http_request
from examples import bad_version
from examples.bad_version.__main__ import MODEL, Story
from headrace.client.platform import Client
from headrace.local.launcher import Launcher

_TARGET_SECONDS, _TARGET_RATIO = 5.0, 1.05
_PAUSE_SECONDS = 0.01
_ROW = {"distance": 0.5, "queue": 0.5}
_KEYED = {"X-Prediction-Key": "0"}


class Asker(threading.Thread):
    """Asks one replica all the time; `began`: when it first answered with a version after another, epoch seconds."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self._address, self._stop_asking = urlsplit(url).netloc, threading.Event()
        self.began: list[tuple[int, float]] = []
        self.failed = 0

    @property
    def version(self) -> int:
        return self.began[-1][0] if self.began else 0

    def run(self) -> None:
        body = json.dumps({"instances": [_ROW]})
        while not self._stop_asking.wait(_PAUSE_SECONDS):
            connection = http.client.HTTPConnection(self._address, timeout=10)
            with suppress(OSError, http.client.HTTPException):
                while not self._stop_asking.wait(_PAUSE_SECONDS):
                    connection.request("POST", f"/v1/models/{MODEL}:predict", body)
                    answer = connection.getresponse()
                    answer.read()
                    self._heard(answer)
            connection.close()

    def _heard(self, answer: http.client.HTTPResponse) -> None:
        if answer.status != http.client.OK:
            self.failed += bool(self.began)
        elif (version := int(answer.headers["headrace-version"])) != self.version:
            self.began.append((version, time.time()))

    def stop(self) -> None:
        self._stop_asking.set()
        self.join()


def shadow_rows(url: str, version: int, *, rate: float, seconds: float, turns: int) -> list[dict[str, Cell]]:
    paths = {"with a shadow": f"{MODEL}:predict", "without": f"{MODEL}/versions/{version}:predict"}
    found: dict[str, list[np.ndarray]] = {name: [] for name in paths}
    address, body = urlsplit(url), json.dumps({"instances": [_ROW]}).encode()
    assert address.hostname
    assert address.port
    for _ in range(turns):
        for name, path in paths.items():
            request = http_request(f"{url}/v1/models/{path}", body, headers=_KEYED)
            found[name].append(OpenLoop((address.hostname, address.port), request, rate, seconds).run())
    rows = {name: np.concatenate(parts) for name, parts in found.items()}
    base = float(np.quantile(rows["without"][:, 1], 0.99))
    return [
        {
            "keyed predictions": name, "requests": len(of), "failed": int((of[:, 2] != http.client.OK).sum()),
            "p50 ms": float(np.quantile(of[:, 1], 0.5)) * 1000, "p99 ms": float(np.quantile(of[:, 1], 0.99)) * 1000,
            "p99 / without": float(np.quantile(of[:, 1], 0.99)) / base,
            "target": _TARGET_RATIO if name in list(paths)[:1] else None,
        }
        for name, of in rows.items()
    ]  # fmt: skip


def await_all(story: Story, askers: Sequence[Asker], version: int) -> None:
    story.until(
        lambda: all(asker.version == version for asker in askers), f"every replica answers with version {version}"
    )


def back_row(client: Client, story: Story, askers: Sequence[Asker], bad: int, good: int) -> dict[str, Cell]:
    story.until(story.is_back, f"production is version {good} again")
    await_all(story, askers, good)
    judge = next(version["judge"] for version in client.live(MODEL)["versions"] if version["version"] == bad)
    crossed_at = judge["at"]
    return {
        "bad version": bad, "labels to the crossing": judge["samples"],
        "crossing to the registry s": client.alias_history(MODEL)[-1].at - crossed_at,
        "crossing to every replica s": max(asker.began[-1][1] for asker in askers) - crossed_at,
        "target s": _TARGET_SECONDS, "failed meanwhile": sum(asker.failed for asker in askers),
    }  # fmt: skip


def measure(client: Client, given: argparse.Namespace) -> tuple[list[dict[str, Cell]], list[dict[str, Cell]]]:
    story, askers = Story(client), [Asker(url) for url in client.addresses.serving]
    shadows: list[dict[str, Cell]] = []
    backs: list[dict[str, Cell]] = []
    client.apply(Path(bad_version.__file__).parent)
    story.send(is_inverted=False)
    for asker in askers:
        asker.start()
    await_all(story, askers, 1)
    for bad in range(2, 2 + given.versions):
        story.send(is_inverted=True)
        await_all(story, askers, bad)
        if not shadows:
            url = client.addresses.serving[0]
            shadows = shadow_rows(url, bad, rate=given.rate, seconds=given.seconds, turns=given.turns)
        backs.append(back_row(client, story, askers, bad, 1))
    for asker in askers:
        asker.stop()
    return shadows, backs


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.going_back", description=__doc__)
    parser.add_argument("--versions", type=int, default=3)
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--rate", type=float, default=100.0)
    parser.add_argument("--seconds", type=float, default=10.0, help="of a turn")
    parser.add_argument("--turns", type=int, default=3)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        launcher = Launcher(Path(folder))
        try:
            launcher.up(replicas=given.replicas, port_offset=None)
            launcher.wait_until_ready()
            with launcher.client(by="benchmarks.going_back") as client:
                shadows, backs = measure(client, given)
        finally:
            launcher.close()
    facts: dict[str, Cell] = {"replicas": given.replicas, "rate": given.rate}
    publish("shadow", "What a shadow costs the live version", shadows, facts=facts)
    publish("going_back", "Production that goes back by itself", backs, facts=facts)


if __name__ == "__main__":
    main()
