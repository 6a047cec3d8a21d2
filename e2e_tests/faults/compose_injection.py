"""The faults for a platform in containers: signals by the host's process ids, the engine's pause, its network."""

import time
from pathlib import Path

import yaml

from e2e_tests.compose_driver import ComposePlatform
from e2e_tests.faults.history import LogRecord
from e2e_tests.faults.injection import (
    CUT,
    DEATH,
    EVERYTHING,
    FULL,
    KILL,
    PAUSE,
    RESTART,
    TOPIC,
    Card,
    Disk,
    kill_meanwhile,
)
from e2e_tests.faults.log_reading import KAFKA_SCRIPT, read_kafka_lines
from e2e_tests.waiting import until

_BROKER = "kafka:9092"
_DISK_MEGABYTES, _DISK_MEGABYTES_WITH_A_TABLE = 512, 2048
_PROXY = "proxy"


class ComposeInjector:
    """Fills injection.Injector. The registry's and Kafka's volumes have a small disk each."""

    def __init__(self, folder: Path, *, trainers: int = 1, has_table: bool = False) -> None:
        """Starts a platform. Raises Unavailable without root or an engine."""
        folder.mkdir(parents=True, exist_ok=True)
        megabytes = _DISK_MEGABYTES_WITH_A_TABLE if has_table else _DISK_MEGABYTES
        self._disks = {name: Disk(folder / "volumes" / name, megabytes=megabytes) for name in ("kafka", "registry")}
        volumes = folder / "volumes.yml"
        volumes.write_text(
            yaml.safe_dump({"volumes": {name: _bound(disk.place) for name, disk in self._disks.items()}})
        )
        try:
            self.platform = ComposePlatform(folder / "platform", trainers=trainers, extra_files=(volumes,))
        except BaseException:
            self._unmount()
            raise

    def deck(self) -> list[Card]:
        names = self.platform.names
        cards = [(what, name) for what in (KILL, PAUSE, RESTART) for name in names]
        # Cut off from its network, the proxy would lose the ports that it publishes.
        cards += [(CUT, name) for name in names if name != _PROXY]
        cards += [(FULL, name) for name in self._disks] + [(DEATH, name) for name in names if name != _PROXY]
        return [*cards, (KILL, EVERYTHING)]

    def strike(self, card: Card, seconds: float) -> float:
        what, target = card
        at = time.time()
        match what:
            case "kill -9" if target == EVERYTHING:
                self.platform.kill_everything()
                return at
            case "kill -9":
                until(lambda: self.platform.pid(target), f"{target} runs")
                at = time.time()
                self.platform.kill(target)
                return at
            case "restart":
                self.platform.stop(target)
                at = time.time()
                self.platform.start(target)
                return at
            case "pause":
                self.platform.pause(target)
                time.sleep(seconds)
                self.platform.unpause(target)
            case "network cut":
                self.platform.disconnect(target)
                time.sleep(seconds)
                self.platform.connect(target)
            case "disk full":
                self._disks[target].fill(seconds)
            case _:
                kill_meanwhile(self._disks.values(), seconds, lambda: self.platform.kill(target))
        return time.time()

    def log_records(self) -> list[LogRecord]:
        return list(read_kafka_lines(self.platform.run_in("ingest", "python", "-c", KAFKA_SCRIPT, TOPIC, _BROKER)))

    def close(self) -> None:
        try:
            self.platform.close()
        finally:
            self._unmount()

    def _unmount(self) -> None:
        for disk in self._disks.values():
            disk.close()


def _bound(place: Path) -> dict[str, object]:
    """A volume that is a folder of the host."""
    return {"driver": "local", "driver_opts": {"type": "none", "o": "bind", "device": str(place)}}
