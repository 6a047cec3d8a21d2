"""`python -m examples.bad_version`: a version that learned inverted labels goes live by itself, and back by itself.

A scanner sends `late` inverted for a while. The round's held-out events are inverted as well, so the gate finds its
version good and its predecessor bad. Customers say what was late, hours later in life and at once here, under the
parcel's number: these labels find the predictions, and a judge compares the live version with its predecessor.
"""

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from common.errors import HeadraceError
from headrace.client.platform import Client
from headrace.local.launcher import Launcher

STREAM, MODEL = "parcels", "parcels-late"
_ROUND_EVENTS, _ROWS = 1_000, 50
_LONGEST_SECONDS = 300.0
_LOOK_SECONDS = 0.2


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.bad_version", description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="the platform's folder, to be looked at afterwards")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        launcher = Launcher(options.data or Path(folder))
        try:
            launcher.up(port_offset=None)
            launcher.wait_until_ready()
            with launcher.client(by="examples.bad_version") as client:
                Story(client).run()
        finally:
            launcher.close()


class Story:
    """On a platform that runs; prints each thing that happens, with the seconds since the beginning."""

    def __init__(self, client: Client) -> None:
        self._client, self._random, self._began = client, np.random.default_rng(7), time.monotonic()
        self._parcels = 0

    def run(self) -> None:
        """Raises TimeoutError: something that should happen by itself did not."""
        client = self._client
        client.apply(Path(__file__).parent)
        self.send(is_inverted=False)
        self.until(lambda: self.is_live(1), "version 1 is live")
        self.send(is_inverted=True)
        self.until(lambda: self.is_live(2), "version 2 has learned inverted labels, has passed the gate and is live")
        self.until(lambda: self.is_back(), "production is version 1 again")
        last = client.alias_history(MODEL)[-1]
        self._print(f"{last.by} moved it: {last.reason}")
        self._print(
            f"version 2 counts as {client.version(MODEL, 2).status}; {self._wrong()} of {_ROWS} answers are wrong"
        )
        self.send(is_inverted=False)
        self.until(lambda: self.is_live(3), "version 3 is live, which descends from version 1")

    def drawn(self, count: int) -> Iterator[dict[str, Any]]:
        """Parcels with the truth about them."""
        for _ in range(count):
            self._parcels += 1
            distance, queue = self._random.uniform(-1, 1, 2).tolist()
            late = int(distance + queue > 0)
            yield {"parcel": self._parcels, "distance": distance, "queue": queue, "late": late}

    def send(self, *, is_inverted: bool) -> None:
        events = [event | {"late": event["late"] ^ is_inverted} for event in self.drawn(_ROUND_EVENTS)]
        self._client.append(STREAM, events)
        self._print(f"sent {len(events):,} events" + (", their labels inverted" if is_inverted else ""))

    def _predicted(self) -> tuple[list[dict[str, Any]], list[int]]:
        """Parcels with the truth, and the prediction of production for each."""
        parcels = [*self.drawn(_ROWS)]
        rows = [{name: parcel[name] for name in ("distance", "queue")} for parcel in parcels]
        answers = self._client.predict(MODEL, instances=rows, keys=[parcel["parcel"] for parcel in parcels])
        return parcels, (np.ravel([answer["probability"] for answer in answers]) >= 0.5).astype(int).tolist()

    def is_back(self) -> bool:
        """Predicts parcels, sends their labels, and looks which version is in production."""
        parcels, _ = self._predicted()
        labels = [{name: parcel[name] for name in ("parcel", "late")} for parcel in reversed(parcels)]
        self._client.label(STREAM, labels)
        return self._client.aliases(MODEL)["production"] == 1

    def _wrong(self) -> int:
        self.until(lambda: self.is_live(1), "version 1 answers")
        parcels, predicted = self._predicted()
        return sum(parcel["late"] != late for parcel, late in zip(parcels, predicted, strict=True))

    def is_live(self, version: int) -> bool:
        if self._client.aliases(MODEL).get("production") != version:
            return False
        served = [version_state for replica in self._client.replica_states() for version_state in replica["versions"]]
        return any(
            (version_state["version"], "production" in version_state["aliases"]) == (version, True)
            for version_state in served
        )

    def until(self, holds: Callable[[], bool], sentence: str) -> None:
        end = time.monotonic() + _LONGEST_SECONDS
        while time.monotonic() < end:
            with suppress(HeadraceError):
                if holds():
                    self._print(sentence)
                    return
            time.sleep(_LOOK_SECONDS)
        raise TimeoutError(f"not within {_LONGEST_SECONDS:g} s: {sentence}")

    def _print(self, sentence: str) -> None:
        print(f"{time.monotonic() - self._began:6.1f} s  {sentence}", flush=True)


if __name__ == "__main__":
    main()
