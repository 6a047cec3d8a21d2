"""A real PostgreSQL of a test's own, in a folder, on loopback; see testing/programs.py for its package."""

import os
import pwd
import shutil
import signal
import subprocess
import uuid
from dataclasses import dataclass, field
from pathlib import Path

import psycopg

from testing.processes import free_port
from testing.programs import where
from testing.waiting import DEADLINE_SECONDS, wait_until

_USER = "postgres"
"""Debian's package makes it; the server refuses to run as root."""
PASSWORD = "postgres-test-password"


@dataclass
class PostgresServer:
    """Its data survives kill() and start().

    Attributes:
        host: the address of this machine at which it listens.
        network: from which others may log in with the password, such as 10.88.7.0/24; "": this machine alone.
    """

    directory: Path
    port: int = field(default_factory=free_port)
    host: str = "127.0.0.1"
    network: str = ""
    process: subprocess.Popen[bytes] | None = None

    def url(self, database: str) -> str:
        return f"postgresql://{_USER}@{self.host}:{self.port}/{database}"

    @property
    def password_file(self) -> Path:
        return self.directory / "password"

    def start(self) -> None:
        """Returns when it answers."""
        if not (data := self.directory / "data").exists():
            self.directory.mkdir(parents=True)
            self.password_file.write_text(PASSWORD)
            if os.geteuid() == 0:
                shutil.chown(self.directory, _USER)
            self._run("initdb", "-D", data, "-U", _USER, "-A", "scram-sha-256", f"--pwfile={self.password_file}", "-N")
            if self.network:
                with (data / "pg_hba.conf").open("a") as rules:
                    rules.writelines(
                        f"host all all {mask} scram-sha-256\n" for mask in (f"{self.host}/32", self.network)
                    )
        options = ["-D", data, "-p", self.port, "-k", self.directory, "-c", f"listen_addresses={self.host}"]
        self.process = subprocess.Popen(
            self._command("postgres", *options, "-c", "fsync=off"),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            user=self._user,
            cwd="/",
        )
        wait_until(self._answers, "PostgreSQL answers")

    def stop(self, number: signal.Signals = signal.SIGINT) -> None:
        """SIGINT ends its connections and itself."""
        assert self.process is not None
        self.process.send_signal(number)
        self.process.wait(timeout=DEADLINE_SECONDS)

    def new_database(self) -> str:
        """Its name."""
        name = f"d{uuid.uuid4().hex}"
        with self.connect() as connection:
            connection.execute(f"CREATE DATABASE {name}".encode())
        return name

    def connect(self, database: str = _USER) -> "psycopg.Connection[tuple[object, ...]]":
        return psycopg.connect(self.url(database), password=PASSWORD, autocommit=True, connect_timeout=5)

    @property
    def _user(self) -> int | None:
        return pwd.getpwnam(_USER).pw_uid if os.geteuid() == 0 else None

    def _command(self, program: str, *arguments: object) -> list[str]:
        found = where(program)
        assert found is not None, f"{program} is not there"
        return [found, *map(str, arguments)]

    def _run(self, program: str, *arguments: object) -> None:
        command = self._command(program, *arguments)
        done = subprocess.run(
            command, capture_output=True, text=True, user=self._user, cwd="/", timeout=DEADLINE_SECONDS, check=False
        )
        assert done.returncode == 0, f"{program}: {done.stderr}"

    def _answers(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, "PostgreSQL ended at once"
        try:
            self.connect().close()
        except psycopg.OperationalError:
            return False
        return True
