"""`python -m examples.bad_version`: a version that learned inverted labels goes live by itself, and back by itself.

A scanner sends `late` inverted for a while. The round's held-out events are inverted as well, so the gate finds its
version good and the one before it bad. Customers say what was late, hours later in life and at once here, under the
parcel's number: these labels find the predictions, and a judge compares the live version with the one before it.
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
from headrace.files.definition_folder import read_folder
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
                Story(client).tell()
        finally:
            launcher.close()


class Story:
    """On a platform that runs; prints each thing that happens, with the seconds since the beginning."""

    def __init__(self, client: Client) -> None:
        self._client, self._random, self._began = client, np.random.default_rng(7), time.monotonic()
        self._parcels = 0

    def tell(self) -> None:
        """Raises TimeoutError: something that should happen by itself did not."""
        client = self._client
        read_folder(Path(__file__).parent).apply(client)
        self.send(is_inverted=False)
        self.until(lambda: self.is_live(1), "version 1 is live")
        self.send(is_inverted=True)
        self.until(lambda: self.is_live(2), "version 2 has learned inverted labels, has passed the gate and is live")
        self.until(lambda: self.asked_and_back(), "production is version 1 again")
        last = client.alias_history(MODEL)[-1]
        self._say(f"{last.by} moved it: {last.reason}")
        self._say(
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
        events = [one | {"late": one["late"] ^ is_inverted} for one in self.drawn(_ROUND_EVENTS)]
        self._client.append(STREAM, events)
        self._say(f"sent {len(events):,} events" + (", their labels inverted" if is_inverted else ""))

    def _asked(self) -> tuple[list[dict[str, Any]], list[int]]:
        """Parcels with the truth, and what production said of each."""
        parcels = [*self.drawn(_ROWS)]
        rows = [{name: one[name] for name in ("distance", "queue")} for one in parcels]
        answers = self._client.predict(MODEL, instances=rows, keys=[one["parcel"] for one in parcels])
        return parcels, (np.ravel([answer["probability"] for answer in answers]) >= 0.5).astype(int).tolist()

    def asked_and_back(self) -> bool:
        """Asks about some parcels, has their labels come, and looks where production is."""
        parcels, _ = self._asked()
        self._client.label(STREAM, [{"parcel": one["parcel"], "late": one["late"]} for one in reversed(parcels)])
        return self._client.aliases(MODEL)["production"] == 1

    def _wrong(self) -> int:
        self.until(lambda: self.is_live(1), "version 1 answers")
        parcels, said = self._asked()
        return sum(one["late"] != late for one, late in zip(parcels, said, strict=True))

    def is_live(self, version: int) -> bool:
        if self._client.aliases(MODEL).get("production") != version:
            return False
        served = [one for replica in self._client.replica_states() for one in replica["versions"]]
        return any((one["version"], "production" in one["aliases"]) == (version, True) for one in served)

    def until(self, holds: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + _LONGEST_SECONDS
        while time.monotonic() < end:
            with suppress(HeadraceError):
                if holds():
                    self._say(what)
                    return
            time.sleep(_LOOK_SECONDS)
        raise TimeoutError(f"not within {_LONGEST_SECONDS:g} s: {what}")

    def _say(self, sentence: str) -> None:
        print(f"{time.monotonic() - self._began:6.1f} s  {sentence}", flush=True)


if __name__ == "__main__":
    main()
