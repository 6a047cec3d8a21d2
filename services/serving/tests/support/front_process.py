"""The front of serving in a thread of the test: real sockets, real Redis, no manager."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Self, TypeVar

import httpx
import uvicorn
import uvloop

from common.access.guard import NO_GUARD, Guard
from common.eventlog import tfrecord
from common.process.health import Health
from common.process.rpc_aio import start_aio_server
from common.process.tracing import OFF, Tracing
from common.process.web import bind
from protos import prediction_log_pb2
from services.serving.doors import grpc_api
from services.serving.doors.http_api import create_serving_app, web_config
from services.serving.doors.large_messages import LargeMessages
from services.serving.doors.rest_predict import RestPredict
from services.serving.front.async_predictions import AsyncLimits, AsyncPredictions
from services.serving.front.core import CONDITION, Front
from services.serving.front.journal import Journal
from services.serving.front.request_counts import ApiLatency, RequestCounts
from services.serving.front.request_log import RequestLog, open_place
from services.serving.front.shadow import Shadow
from services.serving.tests.support.fake_runner import FakeRunner
from services.serving.wire.limits import DEFAULT_LIMITS, Limits
from services.serving.wire.replica_state import ReplicaState
from testing import plain_http

_Result = TypeVar("_Result")
_TIMEOUT_SECONDS = 60.0
_ASYNC_LIMITS = AsyncLimits()
_GRPC_BYTES = 4 << 20


class FrontThread:
    """Starts on entry, and is connected to the queue then unless Redis is away."""

    def __init__(
        self, redis_url: str, state: ReplicaState | None, *, queue_limit: int = 64, in_flight_limit: int = 64,
        timeout_seconds: float = 60.0, max_body_bytes: int = 1 << 20, keep_alive_seconds: int = 5,
        enable_cors: bool = False, request_log: RequestLog | None = None,
        async_limits: AsyncLimits = _ASYNC_LIMITS, tracing: Tracing = OFF, limits: Limits = DEFAULT_LIMITS,
        guard: Guard = NO_GUARD,
    ) -> None:  # fmt: skip
        self._tracing, self._limits, self._guard = tracing, limits, guard
        self._redis_url = redis_url
        self._state = state
        self._queue_limit, self._in_flight_limit = queue_limit, in_flight_limit
        self._timeout_seconds = timeout_seconds
        self._max_body_bytes = max_body_bytes
        self._enable_cors = enable_cors
        self.request_log = request_log
        self.latency = ApiLatency()
        self._async_limits = async_limits
        self._keep_alive_seconds = keep_alive_seconds
        self._sock = bind("127.0.0.1", 0)
        self._started = threading.Event()
        self._thread = threading.Thread(target=lambda: uvloop.run(self._serve()))
        self.port: int = self._sock.getsockname()[1]
        self.grpc_port = 0
        self.health = Health(CONDITION)
        self.runner: FakeRunner
        """Where a fixture runs one beside the front."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._started.wait(_TIMEOUT_SECONDS)
        return self

    def __exit__(self, *exc: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(_TIMEOUT_SECONDS)
        assert not self._thread.is_alive()

    def post(self, body: Any = None, path: str = "/v1/models/m:predict", **given: Any) -> httpx.Response:
        """`given` as httpx has it."""
        return plain_http.post(self.url + path, json=body, timeout=_TIMEOUT_SECONDS, **given)

    def call(self, function: Callable[[], _Result]) -> _Result:
        """Runs a function in the front's loop and returns what it returns."""

        async def run() -> _Result:
            return function()

        return self.run(run())

    def run(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_TIMEOUT_SECONDS)

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self.front = Front(
            redis_url=self._redis_url, front_id="front", timeout_seconds=self._timeout_seconds, health=self.health,
            queue_limit=self._queue_limit, in_flight_limit=self._in_flight_limit, limits=self._limits,
        )  # fmt: skip
        if self._state is not None:
            self.front.update(self._state)
        self.counts = RequestCounts(lambda: self.front.open_count)
        self.asynchronous = AsyncPredictions(self._redis_url, queue_limit=self._queue_limit, limits=self._async_limits)
        self.shadow = Shadow(self.front, self.request_log.offer) if self.request_log is not None else None
        journal = Journal(self.counts, self.request_log, self.latency, self._tracing, self.shadow)
        large = LargeMessages(self.front.limits)
        predict = RestPredict(self.front, journal, large)
        options: dict[str, Any] = {
            "max_body_bytes": self._max_body_bytes, "enable_cors": self._enable_cors, "guard": self._guard,
        }  # fmt: skip
        app = create_serving_app(self.front, predict, self.asynchronous, self.health, tracing=self._tracing, **options)
        keep_alive = self._keep_alive_seconds
        config = web_config(app, predict, keep_alive_seconds=keep_alive, graceful_seconds=20, **options)
        self.server = uvicorn.Server(config)
        grpc_server, self.grpc_port = await start_aio_server(
            "127.0.0.1:0", lambda server: grpc_api.add_services(server, self.front, journal, large),
            service_names=grpc_api.SERVICE_NAMES, service_health=self.health, guard=self._guard,
            options=[("grpc.max_receive_message_length", max(self._max_body_bytes, _GRPC_BYTES))],
        )  # fmt: skip
        queue = self._loop.create_task(self.front.queue_clients.run())
        web = self._loop.create_task(self.server.serve([self._sock]))
        deadline = self._loop.time() + _TIMEOUT_SECONDS
        while not (self.server.started and self.front.queue_clients.is_connected):
            assert self._loop.time() < deadline, "the front did not start"
            await asyncio.sleep(0.005)
        self._started.set()
        await self._stop.wait()
        self.server.should_exit = True
        await grpc_server.stop(0)
        self.front.give_up()
        self.asynchronous.waiting.stop()
        await web
        await self.asynchronous.close()
        queue.cancel()
        await asyncio.gather(queue, return_exceptions=True)


class LoggedFront(FrontThread):
    """With a request log in a folder; of predictions without a key it takes the share `rate`."""

    def __init__(self, redis_url: str, folder: Path, state: ReplicaState, *, rate: float = 0.0) -> None:
        self._folder = folder
        self.log = RequestLog(open_place(f"tfrecord:{folder}"), default=rate, buffer_bytes=1 << 20)
        super().__init__(redis_url, state, request_log=self.log)

    def __enter__(self) -> Self:
        self.log.start()
        return super().__enter__()

    def __exit__(self, *exc: object) -> None:
        super().__exit__(*exc)
        self.log.stop(timeout_seconds=_TIMEOUT_SECONDS)

    def records(self) -> list[prediction_log_pb2.PredictionLog]:
        """Of model m, once the front has ended."""
        values = [path.read_bytes() for path in sorted((self._folder / "m").glob("*.tfrecord"))]
        parse = prediction_log_pb2.PredictionLog.FromString
        return [parse(record) for value in values for record in tfrecord.cut(value)[0]]
