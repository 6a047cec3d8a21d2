"""The faults themselves, for each mode: a deck of (what, target), and strike(), which does one and undoes it."""

import contextlib
import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Protocol

import psutil

from e2e_tests.driver import Platform
from e2e_tests.faults.history import LogRecord
from e2e_tests.faults.log_reading import read_segments
from e2e_tests.faults.stream import STREAM
from e2e_tests.local_driver import LocalPlatform
from e2e_tests.waiting import until
from headrace import HeadraceError, Unavailable

Card = tuple[str, str]
"""What, and to which part of the platform."""
KILL, PAUSE, RESTART, CUT, FULL = "kill -9", "pause", "restart", "network cut", "disk full"
DEATH = "kill -9, disks full"
EVERYTHING = "everything"
ROUND, MEMBER, CHIEF = "the round's process", "a member of the round", "the chief of a cluster round"
"""The last two are processes of a round that several trainers compute."""
TOPIC = f"examples.{STREAM}"
_REFILL_SECONDS = 0.1
_CHILD_SECONDS = 120.0
_FILL_BYTES = 1 << 20
_PLATFORM_MEGABYTES = 512


class Injector(Protocol):
    """A platform that faults can be done to."""

    @property
    def platform(self) -> Platform: ...

    def deck(self) -> list[Card]:
        """Every fault that there is in this mode, once."""

    def strike(self, card: Card, seconds: float) -> float:
        """Does it, waits `seconds` where it lasts, and undoes it; returns when it was lifted (epoch seconds)."""

    def log_records(self) -> list[LogRecord]:
        """The stream's whole log. Nothing may be appending."""

    def close(self) -> None:
        """Ends the platform and removes its data."""


def deal(deck: Sequence[Card], count: int, chance: random.Random) -> Iterator[Card]:
    """`count` cards: the deck shuffled, and again, so that every fault comes up before one comes up twice more."""
    hand: list[Card] = []
    for _ in range(count):
        if not hand:
            hand = chance.sample(list(deck), len(deck))
        yield hand.pop()


def overlap(cards: Iterable[Card], share: float, chance: random.Random) -> Iterator[tuple[Card, ...]]:
    """What is struck at once: one card, or, in about that share of the strikes, a card and the next one with it."""
    waiting: tuple[Card, ...] = ()
    for card in cards:
        if waiting and _may_be_struck_together(waiting[0], card):
            yield (*waiting, card)
            waiting = ()
            continue
        if waiting:
            yield waiting
        waiting = (card,)
        if not share or chance.random() >= share:
            yield waiting
            waiting = ()
    if waiting:
        yield waiting


def _may_be_struck_together(one: Card, other: Card) -> bool:
    """A second fault of the same target has nothing to strike; two stops at once would undo each other's orders to the
    supervisor; and of two that fill the same disk the first to end would give its room back."""
    targets, kinds = {one[1], other[1]}, {one[0], other[0]}
    undo_each_other = kinds in ({RESTART}, {DEATH}, {DEATH, FULL})
    return len(targets) == 2 and EVERYTHING not in targets and not undo_each_other


class Disk:
    """A file system of its own with little room, in memory; needs root."""

    def __init__(self, place: Path, *, megabytes: int) -> None:
        """Raises Unavailable when it cannot be mounted."""
        self.place = place
        place.mkdir(parents=True, exist_ok=True)
        options = f"size={megabytes}m,mode=0777"
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise Unavailable(f"no disk of its own for {place} (that needs root): {done.stderr.strip()}")

    def fill(self, seconds: float) -> None:
        """Leaves no room for so long, also not what others free meanwhile."""
        filler = self.place / ".filler"
        end = time.monotonic() + seconds
        try:
            with filler.open("ab", buffering=0) as file:
                while time.monotonic() < end:
                    for size_bytes in (_FILL_BYTES, 4096):
                        with contextlib.suppress(OSError):
                            while file.write(bytes(size_bytes)) == size_bytes:
                                pass
                    time.sleep(_REFILL_SECONDS)
        finally:
            filler.unlink()

    def close(self) -> None:
        # Lazily: a process that is ending may still have a file open.
        subprocess.run(["umount", "--lazy", str(self.place)], check=False, capture_output=True)


class LocalInjector:
    """Faults for processes of this machine, by signals."""

    def __init__(self, folder: Path, *, trainers: int = 1, has_table: bool = False) -> None:
        """Starts a platform; it, its log and its registry have a small disk each, with a table the last has room for
        it. Raises Unavailable without root."""
        registry_megabytes = 2048 if has_table else 256
        self._trainers, data_dir = trainers, folder / "platform"
        self._disks = {"platform": Disk(data_dir, megabytes=_PLATFORM_MEGABYTES + registry_megabytes)}
        self._disks["log"] = Disk(data_dir / "log", megabytes=256)
        self._disks["registry"] = Disk(data_dir / "registry", megabytes=registry_megabytes)
        try:
            self.platform = LocalPlatform(data_dir, trainers=trainers)
        except BaseException:
            self._unmount()
            raise

    def deck(self) -> list[Card]:
        names = self.platform.names
        cards = [(what, name) for what in (KILL, PAUSE, RESTART) for name in names]
        cards += [(KILL, "serving's runner"), (KILL, ROUND), (KILL, EVERYTHING)]
        if self._trainers > 1:
            cards += [(what, target) for what in (KILL, PAUSE) for target in (MEMBER, CHIEF)]
        return cards + [(FULL, name) for name in self._disks] + [(DEATH, name) for name in names]

    def strike(self, card: Card, seconds: float) -> float:
        what, target = card
        match what:
            case "kill -9":
                return self._kill(target)
            case "pause":
                self._pause(target, seconds)
            case "restart":
                self.platform.stop(target)
                lifted_at = time.time()
                self.platform.start(target)
                return lifted_at
            case "disk full":
                self._disks[target].fill(seconds)
            case _:
                kill_meanwhile(self._disks.values(), seconds, lambda: self._kill_pid(target))
        return time.time()

    def _kill_pid(self, target: str) -> None:
        """By its id, since what the supervisor says of it cannot be written then."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(until(lambda: self.platform.pid(target), f"{target} runs"), signal.SIGKILL)

    def _kill(self, target: str) -> float:
        if target == EVERYTHING:
            at = time.time()
            self.platform.kill_everything()
            return at
        if target in self.platform.names:
            until(lambda: self.platform.pid(target), f"{target} runs")
            at = time.time()
            self.platform.kill(target)
            return at
        find = self._runner_pid if target == "serving's runner" else lambda: self._round_pid(target)
        pid = until(find, f"{target} is there", timeout_seconds=_CHILD_SECONDS)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        return time.time()

    def _runner_pid(self) -> int:
        """The id is the last part of the runner's name."""
        with self.platform.client(timeout_seconds=2.0) as client:
            for item in client.replica_states()[0]["versions"]:
                if item["state"] == "AVAILABLE" and "production" in item["aliases"]:
                    return int(str(item["runner"]).rpartition("/")[2])
        return 0

    def _round_pid(self, target: str = ROUND) -> int:
        """A grandchild of a trainer: its zygote forks one process for each round, also for one that another leads."""
        trainers = [name for name in self.platform.names if name.startswith("trainer")]
        found = {MEMBER: list[int](), CHIEF: list[int]()}
        for trainer in random.sample(trainers, len(trainers)):
            with contextlib.suppress(psutil.NoSuchProcess):
                process = psutil.Process(self.platform.pid(trainer))
                rounds = Path(process.environ()["TRAINER_DATA_DIR"]) / "rounds"
                role = MEMBER if any(rounds.glob("*-help")) else CHIEF
                found[role] += [child.pid for zygote in process.children() for child in zygote.children()]
        if target == ROUND:
            return next(iter(found[CHIEF] + found[MEMBER]), 0)
        return next(iter(found[target]), 0) if found[MEMBER] else 0

    def _pause(self, target: str, seconds: float) -> None:
        stopped: list[psutil.Process] = []
        try:
            find = partial(self._round_pid, target) if target in (MEMBER, CHIEF) else partial(self.platform.pid, target)
            self._stop_tree(psutil.Process(until(find, f"{target} runs", timeout_seconds=_CHILD_SECONDS)), stopped)
            threading.Event().wait(seconds)
        finally:
            for process in reversed(stopped):
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.resume()

    def _stop_tree(self, process: psutil.Process, stopped: list[psutil.Process]) -> None:
        """Parents first, so that none can make another child."""
        with contextlib.suppress(psutil.NoSuchProcess):
            process.suspend()
            stopped.append(process)
            for child in process.children():
                self._stop_tree(child, stopped)

    def log_records(self) -> list[LogRecord]:
        return list(read_segments(self.platform.event_log_dir / TOPIC))

    def close(self) -> None:
        try:
            self.platform.close()
        finally:
            self._unmount()

    def _unmount(self) -> None:
        for disk in reversed(self._disks.values()):
            disk.close()


def kill_meanwhile(disks: Iterable[Disk], seconds: float, kill: Callable[[], None]) -> None:
    """Fills the disks for so long, and kills halfway."""
    with ThreadPoolExecutor() as pool:
        filling = [pool.submit(disk.fill, seconds) for disk in disks]
        threading.Event().wait(seconds / 2)
        kill()
        for one in filling:
            one.result()


def logs_of(platform: Platform, folder: Path) -> None:
    """Copies what the processes have logged beside the history."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in platform.names:
        with contextlib.suppress(HeadraceError):
            (folder / f"{name}.log").write_text(platform.log_text(name))
