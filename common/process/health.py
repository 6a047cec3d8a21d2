"""Is the service alive, and may it be given work? `python -m common.process.health URL` is the container's probe.

HTTPS is verified by TLS_CA_FILE, and shown the certificate of TLS_CERTIFICATE_FILE and TLS_KEY_FILE."""

import os
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Collection, Mapping

from common.peers import client_context

_PROBE_TIMEOUT_SECONDS = 3.0


class Health:
    """Readiness as a set of named conditions, each set by the part of the service that knows.

    Thread-safe. A service is ready when it is not stopping and every condition holds. Listeners hear of each
    change of readiness (gRPC health follows by a listener).
    """

    def __init__(self, *conditions: str) -> None:
        self._lock = threading.Lock()
        self._reasons: dict[str, str] = dict.fromkeys(conditions, "starting")
        self._oks: dict[str, str] = {}
        self._buts: dict[str, str] = {}
        self._remarks: dict[str, Callable[[], str]] = {}
        self._stopping = False
        self._listeners: list[Callable[[bool], None]] = []

    def listen(self, listener: Callable[[bool], None]) -> None:
        """Calls `listener` with the readiness now and after each change."""
        with self._lock:
            self._listeners.append(listener)
        listener(self.is_ready())

    def satisfy(self, condition: str, *, by: str = "", but: str = "") -> None:
        """Marks a condition as holding. /readyz shows `by` what, and with `but` what is wrong all the same."""
        with self._lock:
            self._oks[condition] = f"ok, {by}" if by else "ok"
        self._set(condition, "", but=but)

    def fail(self, condition: str, reason: str) -> None:
        """Marks a condition as not holding; `reason` is shown by /readyz."""
        self._set(condition, reason)

    def remark_with(self, condition: str, but: Callable[[], str]) -> None:
        """Each look at a condition that holds adds the remark that `but` returns."""
        with self._lock:
            self._remarks[condition] = but

    def stop(self) -> None:
        """From now on not ready: no new work, what runs is finished."""
        with self._lock:
            self._stopping = True
        self._notify()

    def is_ready(self, *, exclude: Collection[str] = ()) -> bool:
        """exclude: conditions that do not count."""
        with self._lock:
            failing = {condition for condition, reason in self._reasons.items() if reason}
            return not self._stopping and failing <= set(exclude)

    def names(self) -> frozenset[str]:
        """Of the conditions."""
        with self._lock:
            return frozenset(self._reasons)

    def conditions(self) -> Mapping[str, str]:
        """{condition: "ok", "ok, but ..." or the reason why it does not hold}."""
        with self._lock:
            found = self._buts | {name: remark() for name, remark in self._remarks.items()}
            buts = {name: f", but {but}" for name, but in found.items() if but}
            shown = {
                name: reason or self._oks.get(name, "ok") + buts.get(name, "") for name, reason in self._reasons.items()
            }
            return shown | ({"stopping": "draining"} if self._stopping else {})

    def _set(self, condition: str, reason: str, *, but: str = "") -> None:
        with self._lock:
            self._buts[condition] = but
            changed = bool(self._reasons.get(condition, "new")) != bool(reason)
            self._reasons[condition] = reason
        if changed:
            self._notify()

    def _notify(self) -> None:
        ready = self.is_ready()
        with self._lock:
            listeners = list(self._listeners)
        for listener in listeners:
            listener(ready)


def main() -> int:
    """Exit status 0 when the URL (default: the argument) answers 200, else 1."""
    url = sys.argv[1]
    try:
        files = (os.environ.get(name, "") for name in ("TLS_CA_FILE", "TLS_CERTIFICATE_FILE", "TLS_KEY_FILE"))
        context = client_context(*files) if url.startswith("https:") else None
        with urllib.request.urlopen(url, timeout=_PROBE_TIMEOUT_SECONDS, context=context) as answer:
            return 0 if answer.status == 200 else 1
    except (urllib.error.URLError, OSError) as error:
        print(f"{url}: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
