"""Starts a real Apache Kafka on loopback: jars by Maven (versions pinned in pom.xml), one KRaft node, free ports."""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from common.process.lifecycle import die_with_parent
from testing.jars import JAVA, jars
from testing.processes import free_port

_HERE = Path(__file__).parent
POM = _HERE / "pom.xml"
_START_TIMEOUT_SECONDS = 240
_CLUSTER_ID = "aGVhZHJhY2UtdGVzdHMxMQ"


@dataclass
class KafkaServer:
    """One broker with its data in a separate folder; the data survives kill() and start().

    Attributes:
        properties: further lines of its configuration.
        format_arguments: further arguments of kafka-storage format.
    """

    directory: Path
    port: int = field(default_factory=free_port)
    controller_port: int = field(default_factory=free_port)
    properties: str = ""
    format_arguments: Sequence[str] = ()
    process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        properties = self.directory / "server.properties"
        if not properties.exists():
            template = (_HERE / "server.properties").read_text()
            properties.write_text(
                template.format(port=self.port, controller_port=self.controller_port, directory=self.directory)
                + self.properties
            )
            form = ("format", "-t", _CLUSTER_ID, "-c", str(properties), *self.format_arguments)
            subprocess.run(
                self._java("kafka.tools.StorageTool", *form),
                check=True, stdout=subprocess.DEVNULL, timeout=_START_TIMEOUT_SECONDS,
            )  # fmt: skip
        with (self.directory / "server.log").open("ab") as log:
            self.process = subprocess.Popen(
                self._java("kafka.Kafka", str(properties)),
                stdout=log, stderr=log, preexec_fn=partial(die_with_parent, os.getpid()),
            )  # fmt: skip
        deadline = time.monotonic() + _START_TIMEOUT_SECONDS
        while not self._answers():
            assert self.process.poll() is None, f"Kafka ended at once: {self._log_tail()}"
            assert time.monotonic() < deadline, f"Kafka did not start: {self._log_tail()}"
            time.sleep(0.05)

    def kill(self) -> None:
        """SIGKILL, as a crash would."""
        assert self.process is not None
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(timeout=60)

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()  # nothing in the data folder is wanted any more
            self.process.wait(timeout=60)

    def _java(self, *arguments: str) -> list[str]:
        return [
            *JAVA, "-Xms128m", f"-Dlog4j2.configurationFile={_HERE / 'log4j2.properties'}", "-cp", f"{jars(POM)}/*",
            *arguments,
        ]  # fmt: skip

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1.0):
                return True
        except OSError:
            return False

    def _log_tail(self) -> str:
        return (self.directory / "server.log").read_text(errors="replace")[-1000:]


def main() -> None:
    """`python -m testing.kafka.kafka_server DIR`: a broker by hand, until interrupted."""
    import sys

    directory = Path(sys.argv[1]).absolute()
    directory.mkdir(parents=True, exist_ok=True)
    server = KafkaServer(directory)
    server.start()
    print(server.address, os.getpid(), flush=True)
    try:
        signal.pause()
    finally:
        server.stop()


if __name__ == "__main__":
    main()
