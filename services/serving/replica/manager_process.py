"""The manager as a child of the front: started, listened to, started again when it dies, stopped in the end.

    python -m services.serving.replica.manager <fd> <parent pid>

`fd` is the manager's end of a Unix socket pair (replica_state.py has its messages).
"""

import asyncio
import base64
import itertools
import logging
import os
import socket
import sys
from collections.abc import Callable, Collection
from contextlib import suppress

import orjson

from common.errors import Unavailable
from common.process.health import Health
from common.process.retry import Backoff, Pauses
from services.serving.wire.replica_state import STOP_COMMAND, ReloadResult, ReplicaState, decode

logger = logging.getLogger(__name__)

CONDITION = "manager"
_LONGEST_LINE_BYTES = 64 * 1024 * 1024
_SILENCE_SECONDS = 10.0
_BACKOFF = Backoff(first_seconds=0.2, longest_seconds=5.0)
_KILL_SECONDS = 2.0


class ManagerProcess:
    """Runs in one event loop. `on_state` gets each snapshot, health the conditions in it and its own, "manager"."""

    def __init__(
        self, *, on_state: Callable[[ReplicaState], None], health: Health, command: tuple[str, ...] = ()
    ) -> None:
        self._on_state = on_state
        self._health = health
        self._command = command or (sys.executable, "-m", "services.serving.replica.manager")
        self._process: asyncio.subprocess.Process | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._reader: asyncio.StreamReader | None = None
        self._is_stopping = False
        self._reload_ids = itertools.count(1)
        self._reloads: dict[int, asyncio.Future[ReloadResult]] = {}
        self._reloaded_config = b""
        """The last configuration that was taken by request: a manager that is started again gets it, unless the file
        was taken since."""
        self._is_from_request = False

    async def run(self) -> None:
        """Keeps the manager, once started, running until `stop`."""
        pauses = Pauses(_BACKOFF)
        while not self._is_stopping:
            if self._reader is None:
                await self.start()
            if await self._listen():
                pauses.begin_again()
            assert self._process is not None
            code = await self._process.wait()
            self._lose_reloads()
            if not self._is_stopping:
                self._health.fail(CONDITION, f"the manager ended with status {code}; starting it again")
                logger.error("the manager ended; starting it again", extra={"status": code})
                await asyncio.sleep(pauses.next_seconds())

    async def reload(self, config: bytes, *, timeout_seconds: float) -> ReloadResult:
        """Has the manager serve another ModelServerConfig (serialized); returns the result. Raises Unavailable: the
        manager is gone, or nothing was decided in time; it may still come true."""
        reload_id = next(self._reload_ids)
        decided = self._reloads[reload_id] = asyncio.get_running_loop().create_future()
        try:
            self._send_reload(reload_id, config, is_restored=False)
            result = await asyncio.wait_for(decided, timeout_seconds)
        except TimeoutError as error:
            raise Unavailable(f"the models were not available after {timeout_seconds:g} s; they still load") from error
        finally:
            self._reloads.pop(reload_id, None)
        if result.is_applied:
            self._reloaded_config = config
        return result

    def _send_reload(self, reload_id: int, config: bytes, *, is_restored: bool) -> None:
        if self._writer is None or self._writer.is_closing():
            raise Unavailable("the manager is being started again; try again")
        command = {"command": "reload", "id": reload_id, "is_restored": is_restored}
        self._writer.write(orjson.dumps(command | {"config": base64.b64encode(config).decode()}) + b"\n")

    def request_loads(self, models: Collection[str]) -> None:
        """Requests wait for models that are not loaded. A manager that is being started again hears of it later."""
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(orjson.dumps({"command": "ask", "models": list(models)}) + b"\n")

    def _take_results(self, state: ReplicaState) -> None:
        if state.config is None:
            return
        if self._is_from_request and not state.config.is_from_request:
            self._reloaded_config = b""
        self._is_from_request = state.config.is_from_request
        for result in state.config.reloads:
            decided = self._reloads.get(result.reload_id)
            if decided is not None and not decided.done():
                decided.set_result(result)

    def _lose_reloads(self) -> None:
        for decided in self._reloads.values():
            if not decided.done():
                decided.set_exception(Unavailable("the manager ended before it had decided; try again"))

    async def stop(self, timeout_seconds: float) -> None:
        """Has the manager drain and end; kills it when the time is over. Its children die with it."""
        self._is_stopping = True
        if self._process is None or self._process.returncode is not None:
            return
        if self._writer is not None:
            self._writer.write(STOP_COMMAND)
        try:
            await asyncio.wait_for(self._process.wait(), timeout_seconds)
        except TimeoutError:
            logger.warning("the manager did not end in time; killing it")
            with suppress(ProcessLookupError):  # it may end at this very moment
                self._process.kill()
            await asyncio.wait_for(self._process.wait(), _KILL_SECONDS)

    async def start(self) -> None:
        """Starts the process; the first time before gRPC has threads, which do not like forks."""
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                str(theirs.fileno()),
                str(os.getpid()),
                pass_fds=(theirs.fileno(),),
                stdin=asyncio.subprocess.DEVNULL,
            )
        self._reader, self._writer = await asyncio.open_unix_connection(sock=ours, limit=_LONGEST_LINE_BYTES)
        self._is_from_request = False
        if self._reloaded_config:
            self._send_reload(next(self._reload_ids), self._reloaded_config, is_restored=True)

    async def _listen(self) -> bool:
        """Until the manager's end closes; whether it sent anything."""
        assert self._reader is not None
        reader, self._reader = self._reader, None
        has_spoken = False
        while True:
            try:
                line = await asyncio.wait_for(reader.readline(), _SILENCE_SECONDS)
            except TimeoutError:
                self._health.fail(CONDITION, f"the manager has sent nothing for {_SILENCE_SECONDS:.0f} s")
                continue
            if not line:
                return has_spoken
            state = decode(line)
            has_spoken = True
            self._health.satisfy(CONDITION)
            for name, reason in state.conditions.items():
                if reason:
                    self._health.fail(name, reason)
                else:
                    self._health.satisfy(name)
            self._take_results(state)
            self._on_state(state)
