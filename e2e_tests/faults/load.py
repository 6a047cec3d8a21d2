"""What goes on all the while: events with idempotency keys, predictions over REST and gRPC with deadlines, rollbacks.

Everything that is asked goes into the history with what was heard, a silent door included.
"""

import contextlib
import http
import http.client
import itertools
import random
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import grpc
import numpy as np
import orjson

from e2e_tests.faults.history import (
    Append,
    KeyedAnswer,
    Labelled,
    Outcome,
    Prediction,
    PredictionOutcome,
    Recorder,
    Undo,
)
from e2e_tests.faults.stream import MODEL, STREAM, events
from headrace import Addresses, Client, Conflict, HeadraceError, InvalidInput, NotFound, Overloaded
from headrace.client.connection import Door
from headrace.client.credentials import token_for
from protos import tfserving_pb2

_TRY_SECONDS = 5.0
_LONGEST_RETRY_SECONDS = 200.0
"""A request that is in doubt for so long is given up."""
_SEND_AGAIN_SECONDS = 60.0
"""How old an acknowledged request may be that is sent again, or whose key is used again. With the retries this stays
below the window in which ingest knows a key (INGEST_KEY_WINDOW_SECONDS, 300)."""
_SILENCE_SECONDS = 5.0
"""How long after a prediction's deadline the asker hangs up."""
_DEFINITE = (InvalidInput, NotFound, Conflict, Overloaded)
_UNDO_SECONDS = (8.0, 25.0)
_LABEL_PAUSE_SECONDS = 0.5
_KEYS_AT_ONCE = 10
_FIRST_KEY = 10**12
"""Beyond all events that are sent."""
_PREDICT = "/tensorflow.serving.PredictionService/Predict"
_BACKOFF = [("grpc.initial_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", 500)]


@dataclass(frozen=True)
class Rates:
    """Attributes:
    senders, askers: threads, each waiting about `pause_seconds` between two calls.
    """

    senders: int = 2
    request_events: int = 20
    send_pause_seconds: float = 0.35
    askers: int = 3
    ask_pause_seconds: float = 0.12

    def __str__(self) -> str:
        return (
            f"{self.senders} senders of {self.request_events} events every {self.send_pause_seconds:g} s, "
            f"{self.askers} askers every {self.ask_pause_seconds:g} s"
        )


class Successes:
    """When the newest successful call began and ended, by kind; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: dict[str, list[tuple[float, float]]] = {}

    def note(self, kind: str, at: float, until: float) -> None:
        with self._lock:
            self._calls.setdefault(kind, []).append((at, until))

    def first_after(self, kind: str, at: float) -> float | None:
        """When the first call that began at `at` or later was over."""
        with self._lock:
            return min((until for began, until in self._calls.get(kind, ()) if began >= at), default=None)


class Sender:
    """Sends requests of events until it is stopped, each until there is a definite answer.

    Some requests are wrong on purpose, some are sent again after they were acknowledged, some keys are used again for
    other events: none of that may leave a trace in the log.
    """

    def __init__(
        self, url: str, history: Recorder, successes: Successes, ids: "itertools.count[int]", rates: Rates, seed: int
    ) -> None:
        self._door = Door("ingest", url, timeout_seconds=_TRY_SECONDS)
        self._history, self._successes, self._ids, self._rates, self._seed = history, successes, ids, rates, seed
        self._chance = random.Random(seed)
        self._acknowledged: deque[tuple[float, str, int, bytes]] = deque()

    def run(self, stop: threading.Event) -> None:
        while not stop.wait(self._rates.send_pause_seconds * self._chance.uniform(0.5, 1.5)):
            draw = self._chance.random()
            while self._acknowledged and self._acknowledged[0][0] < time.time() - _SEND_AGAIN_SECONDS:
                self._acknowledged.popleft()
            if draw < 0.08 and self._acknowledged:
                self._send(*self._chance.choice(self._acknowledged)[1:])
                continue
            first = next(self._ids) * self._rates.request_events
            drawn = events(first, self._rates.request_events, seed=self._seed)
            if draw < 0.13:
                drawn[self._chance.randrange(len(drawn))]["above"] = 7
            key = f"request-{first}"
            if 0.13 <= draw < 0.16 and self._acknowledged:
                key = self._chance.choice(self._acknowledged)[1]
            body = orjson.dumps({"events": drawn})
            if self._send(key, first, body):
                self._acknowledged.append((time.time(), key, first, body))

    def _send(self, key: str, first: int, body: bytes) -> bool:
        """Whether it was acknowledged in the end. A sender that is stopped waits for that too."""
        give_up_at = time.monotonic() + _LONGEST_RETRY_SECONDS
        pause_seconds = 0.1
        while time.monotonic() < give_up_at:
            outcome = self._try(key, first, body)
            if outcome != "in doubt":
                return outcome == "acknowledged"
            time.sleep(pause_seconds * self._chance.uniform(0.5, 1.0))
            pause_seconds = min(1.0, 2 * pause_seconds)
        return False

    def _try(self, key: str, first: int, body: bytes) -> Outcome:
        headers = {"Content-Type": "application/json", "Idempotency-Key": key}
        answer: dict[str, Any] = {}

        def send() -> None:
            path = f"/v1/streams/{STREAM}/events"
            answer.update(self._door.call("POST", path, body, headers=headers, repeatable=False).json())

        at = time.time()
        outcome, detail = _outcome_of(send)
        until = time.time()
        accepted, duplicate = int(answer.get("accepted", 0)), bool(answer.get("duplicate"))
        end = first + self._rates.request_events
        self._history.add(Append(at, until, key, first, end, outcome, detail, accepted, duplicate))
        if outcome == "acknowledged":
            self._successes.note("acknowledged", at, until)
        return outcome


def _outcome_of(act: Callable[[], object]) -> tuple[Outcome, str]:
    """And the error in words."""
    try:
        act()
    except HeadraceError as error:
        return "refused" if isinstance(error, _DEFINITE) else "in doubt", f"{type(error).__name__}: {error.message}"[
            :200
        ]
    return "acknowledged", ""


class Operator:
    """Rolls production back now and then; what is undone is learned again from there. Where there are canaries, takes
    one away every second time."""

    def __init__(self, addresses: Addresses, history: Recorder, seed: int, *, has_canary: bool = False) -> None:
        self._client = Client(addresses, timeout_seconds=_TRY_SECONDS, by="the operator")
        self._registry = Door("registry", addresses.registry, timeout_seconds=_TRY_SECONDS)
        self._has_canary = has_canary
        self._history = history
        self._chance = random.Random(seed)

    def run(self, stop: threading.Event) -> None:
        for number in itertools.count(1):
            if stop.wait(self._chance.uniform(*_UNDO_SECONDS)):
                break
            if self._has_canary and number % 2:
                with contextlib.suppress(HeadraceError):  # there is none, or it is in doubt: its history tells
                    path = f"/v1/models/{MODEL}/aliases/canary?by=the+operator&reason=away+{number}"
                    self._registry.call("DELETE", path, repeatable=False)
            else:
                self._undo(f"undo {number}")
        self._client.close()
        self._registry.close()

    def _undo(self, reason: str) -> None:
        at = time.time()
        outcome, detail = _outcome_of(lambda: self._client.rollback(MODEL, reason=reason))
        self._history.add(Undo(at, time.time(), reason, outcome, detail))


class Labeller:
    """Asks for predictions under keys and sends their labels, by which a judge compares versions."""

    def __init__(self, client: Client, url: str, history: Recorder, seed: int) -> None:
        """`url`: of predictions."""
        self._client, self._history, self._seed = client, history, seed
        self._serving = Door("serving", url, timeout_seconds=_TRY_SECONDS)
        self._keys = itertools.count(_FIRST_KEY, _KEYS_AT_ONCE)

    def run(self, stop: threading.Event) -> None:
        while not stop.wait(_LABEL_PAUSE_SECONDS):
            with contextlib.suppress(HeadraceError):
                self.label()

    def label(self, *, is_after: bool = False) -> int:
        """How many keys. Raises HeadraceError: the predictions or the labels are in doubt."""
        asked = events(next(self._keys), _KEYS_AT_ONCE, seed=self._seed)
        rows = [{"a": event["a"], "b": event["b"]} for event in asked]
        at = time.time()
        try:
            self._ask(rows, [str(event["event"]) for event in asked])
            self._client.label(STREAM, [{"event": event["event"], "above": event["above"]} for event in asked])
        except HeadraceError:
            is_after = False
            raise
        finally:
            self._history.add(Labelled(at, _KEYS_AT_ONCE, is_after))
        return _KEYS_AT_ONCE

    def _ask(self, rows: Sequence[Mapping[str, float]], keys: Sequence[str]) -> None:
        headers = {"Content-Type": "application/json", "X-Prediction-Key": ",".join(keys)}
        body, at = orjson.dumps({"instances": rows}), time.time()
        answer = self._serving.call("POST", f"/v1/models/{MODEL}:predict", body, headers=headers, repeatable=True)
        self._history.add(KeyedAnswer(at, time.time(), keys[0], int(answer.headers["headrace-version"])))


@dataclass(frozen=True)
class _Question:
    id: int
    deadline_seconds: float
    inputs: list[list[float]]


@dataclass(frozen=True)
class _Heard:
    outcome: PredictionOutcome
    detail: str = ""
    version: int = 0
    outputs: Sequence[float] = ()


class Asker:
    """Asks for predictions at one door until it is stopped."""

    door = ""

    def __init__(
        self, history: Recorder, successes: Successes, ids: "itertools.count[int]", rates: Rates, seed: int
    ) -> None:
        self._history, self._successes, self._ids, self._rates = history, successes, ids, rates
        self._chance = random.Random(seed)

    def run(self, stop: threading.Event) -> None:
        while not stop.wait(self._rates.ask_pause_seconds * self._chance.uniform(0.5, 1.5)):
            points = [
                [self._chance.uniform(-1, 1), self._chance.uniform(-1, 1)] for _ in range(self._chance.randint(1, 3))
            ]
            question = _Question(next(self._ids), self._chance.choice((1.0, 2.0, 5.0)), points)
            at = time.time()
            heard = self.ask(question)
            self._note(question, heard, at)
        self.close()

    def ask(self, question: _Question) -> _Heard:
        raise NotImplementedError

    def close(self) -> None:
        """Hangs up."""

    def _note(self, question: _Question, heard: _Heard, at: float) -> None:
        until = time.time()
        place = (at, until, question.id, self.door, question.deadline_seconds, 0, question.inputs)
        self._history.add(Prediction(*place, heard.outcome, heard.detail[:200], heard.version, heard.outputs))
        if heard.outcome == "answered":
            self._successes.note(f"answered over {self.door}", at, until)


class RestAsker(Asker):
    """One connection, kept; a second answer on it would be seen."""

    door = "rest"

    def __init__(
        self, url: str, history: Recorder, successes: Successes, ids: "itertools.count[int]", rates: Rates, seed: int
    ) -> None:
        super().__init__(history, successes, ids, rates, seed)
        parts = urlsplit(url)
        self._place = (parts.hostname or "", parts.port or 0)
        self._credentials = Door("serving", url, timeout_seconds=_TRY_SECONDS).credentials
        self._connection: http.client.HTTPConnection | None = None
        self._last: tuple[_Question, float] | None = None

    def ask(self, question: _Question) -> _Heard:
        self._look_for_a_second_answer()
        body = orjson.dumps({"instances": [{"a": a, "b": b} for a, b in question.inputs]})
        headers = {
            "Content-Type": "application/json",
            "X-Request-Timeout-Ms": str(int(question.deadline_seconds * 1000)),
            **self._credentials,
        }
        timeout = question.deadline_seconds + _SILENCE_SECONDS
        if self._connection is None:
            self._connection = http.client.HTTPConnection(*self._place, timeout=timeout)
        if self._connection.sock is not None:
            self._connection.sock.settimeout(timeout)
        else:
            self._connection.timeout = timeout
        try:
            self._connection.request("POST", f"/v1/models/{MODEL}:predict", body, headers)
            response = self._connection.getresponse()
            content = response.read()
        except TimeoutError:
            self.close()
            return _Heard("silent", "the asker hung up")
        except (OSError, http.client.HTTPException) as error:
            self.close()
            return _Heard("broken", f"{type(error).__name__}: {error}")
        self._last = (question, time.time())
        if response.will_close:
            self.close()
        if response.status == http.HTTPStatus.BAD_GATEWAY:
            return _Heard("broken", "502: the proxy lost the replica")
        if response.status != http.HTTPStatus.OK:
            return _Heard("refused", f"{response.status} {content.decode(errors='replace')}")
        outputs = [_probability(item) for item in orjson.loads(content)["predictions"]]
        return _Heard("answered", version=int(response.headers["headrace-version"]), outputs=outputs)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _look_for_a_second_answer(self) -> None:
        sock = self._connection.sock if self._connection is not None else None
        if sock is None or not select.select([sock], [], [], 0)[0]:
            return
        try:
            data = sock.recv(4096, socket.MSG_PEEK)
        except OSError:
            data = b""
        if data and self._last is not None:
            question, at = self._last
            self._note(question, _Heard("answered", f"again: {data[:100]!r}"), at)
        self.close()


class GrpcAsker(Asker):
    """The stock protocol over one channel."""

    door = "grpc"

    def __init__(
        self, port: int, history: Recorder, successes: Successes, ids: "itertools.count[int]", rates: Rates, seed: int
    ) -> None:
        super().__init__(history, successes, ids, rates, seed)
        self._channel = grpc.insecure_channel(f"127.0.0.1:{port}", options=_BACKOFF)
        token = token_for(f"127.0.0.1:{port}")
        self._credentials = (("authorization", f"Bearer {token}"),) if token else ()
        self._predict = self._channel.unary_unary(
            _PREDICT,
            request_serializer=tfserving_pb2.PredictRequest.SerializeToString,
            response_deserializer=tfserving_pb2.PredictResponse.FromString,
        )

    def ask(self, question: _Question) -> _Heard:
        request = tfserving_pb2.PredictRequest()
        request.model_spec.name = MODEL
        for index, name in enumerate(("a", "b")):
            tensor = request.inputs[name]
            tensor.dtype = tfserving_pb2.DT_FLOAT
            tensor.tensor_shape.dim.add(size=len(question.inputs))
            tensor.float_val.extend(point[index] for point in question.inputs)
        try:
            response = self._predict(request, timeout=question.deadline_seconds, metadata=self._credentials)
        except grpc.RpcError as error:
            return _heard_error(error)
        return _Heard("answered", version=response.model_spec.version.value, outputs=_floats(response))

    def close(self) -> None:
        self._channel.close()


def _heard_error(error: Any) -> _Heard:
    """gRPC says UNAVAILABLE itself when a connection cannot be made or breaks; a service's own has other words."""
    code, detail = error.code(), str(error.details())
    own = ("failed to connect", "Connection reset", "Socket closed", "recvmsg", "GOAWAY", "End of TCP stream")
    if code is grpc.StatusCode.UNAVAILABLE and any(word.lower() in detail.lower() for word in own):
        return _Heard("broken", f"{code.name}: {detail}")
    return _Heard("refused", f"{code.name}: {detail}")


def _floats(response: tfserving_pb2.PredictResponse) -> list[float]:
    tensor = response.outputs["probability"]
    if tensor.tensor_content:
        return [float(value) for value in np.frombuffer(tensor.tensor_content, np.float32)]
    return list(tensor.float_val)


def _probability(prediction: Any) -> float:
    value = prediction["probability"]
    while isinstance(value, list):
        value = value[0]
    return float(value)
