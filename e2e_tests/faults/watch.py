"""Looks at the registry all the while, as any user could: at what production names, and at every new version whole."""

import hashlib
import threading
import time

from e2e_tests.faults.history import AccountSeen, AliasSeen, CanarySeen, EvidenceSeen, Recorder, Stall, VersionSeen
from e2e_tests.faults.load import Successes
from e2e_tests.faults.stream import MODEL
from headrace import Addresses, Client, HeadraceError, NotFound, Unavailable
from headrace.client.connection import Door

_PERIOD_SECONDS = 0.25
_TIMEOUT_SECONDS = 5.0
_STALL_SECONDS = 1.0
_ACCOUNT_SECONDS = 1.0


def watch_the_clock(history: Recorder, stop: threading.Event) -> None:
    """Notes when this process was not run for a while, which then holds for the platform's as well."""
    while True:
        at = time.time()
        if stop.wait(_PERIOD_SECONDS):
            return
        if time.time() - at > _PERIOD_SECONDS + _STALL_SECONDS:
            history.add(Stall(at, time.time()))


class Watcher:
    def __init__(
        self, addresses: Addresses, history: Recorder, successes: Successes, *, sees_canary: bool = False
    ) -> None:
        self._client = Client(addresses, timeout_seconds=_TIMEOUT_SECONDS, by="the watcher")
        self._registry = Door("registry", addresses.registry, timeout_seconds=_TIMEOUT_SECONDS)
        self._history, self._successes = history, successes
        self._known: set[int] = set()
        self._sees_canary = sees_canary
        self._account_at = 0.0

    def run(self, stop: threading.Event) -> None:
        """A registry that is away is asked again; what it says is taken at its word."""
        while not stop.wait(_PERIOD_SECONDS):
            try:
                self.look()
            except HeadraceError:
                continue

    def look(self) -> None:
        """Raises HeadraceError when the registry does not answer."""
        at = time.time()
        production = self._client.aliases(MODEL).get("production", 0)
        self._history.add(AliasSeen(at, time.time(), production))
        if self._sees_canary:
            canary = self._client.model(MODEL).canary
            told = {name: canary[name] for name in ("version", "stage", "share", "verdict") if canary}
            self._history.add(CanarySeen(at, time.time(), **told))
        for version in self._client.versions(MODEL):
            if version.version not in self._known:
                self.look_at(version.version)
                self._successes.note("learned", version.created_at, version.created_at)
                self._known.add(version.version)
        if time.monotonic() >= self._account_at:
            self._history.add(self.account(), self.evidence())
            self._account_at = time.monotonic() + _ACCOUNT_SECONDS

    def account(self, *, is_last: bool = False) -> AccountSeen:
        """Raises HeadraceError when the registry does not answer."""
        at = time.time()
        found = self._client.account(MODEL)
        ranges = [(item["partition"], item["from_offset"], item["to_offset"]) for item in found["left_out"]]
        return AccountSeen(
            at, time.time(), found["head_version"], **found["examples"], left_out_ranges=ranges,
            problems=found["problems"], is_last=is_last,
        )  # fmt: skip

    def evidence(self) -> EvidenceSeen:
        """Raises HeadraceError when the registry does not answer."""
        at = time.time()
        found = self._client.live(MODEL)
        judges = {one["version"]: one["judge"] for one in found["versions"] if "judge" in one}
        tracks = [(one["version"], track) for one in found["versions"] for track in one["tracks"]]
        return EvidenceSeen(
            at, time.time(), found["revision"], found["counts"].get("labelled", 0),
            samples={f"version {number} against {one['against']}": one["samples"] for number, one in judges.items()},
            tracks={f"version {number} as {one['alias']}": one["total"]["examples"] for number, one in tracks},
        )  # fmt: skip

    def look_at(self, number: int) -> None:
        """Fetches and hashes every file of a version. Raises HeadraceError when the registry does not answer."""
        at = time.time()
        version = self._client.version(MODEL, number)
        files, faults = {}, []
        for entry in version.files:
            try:
                content = self._registry.call("GET", f"/v1/files/{entry.digest}", repeatable=False).content
            except Unavailable:
                raise
            except HeadraceError as error:
                faults.append(f"{entry.path}: {error.message}")
                continue
            files[entry.path] = hashlib.sha256(content).hexdigest()
            if files[entry.path] != entry.digest or len(content) != entry.size_bytes:
                faults.append(f"{entry.path} is not the {entry.size_bytes} bytes with digest {entry.digest}")
        self._history.add(VersionSeen(at, number, files, faults))

    def files_of(self, number: int, folder: str) -> dict[str, bytes]:
        """{path below the folder: content} of one version.

        Raises:
            NotFound: it has no such files.
        """
        found = {}
        for entry in self._client.version(MODEL, number).files:
            if entry.path.startswith(f"{folder}/"):
                content = self._registry.call("GET", f"/v1/files/{entry.digest}", repeatable=True).content
                found[entry.path.removeprefix(f"{folder}/")] = content
        if not found:
            raise NotFound(f"version {number} has no files in {folder}")
        return found

    def close(self) -> None:
        self._client.close()
        self._registry.close()
