"""What a status can carry: gRPC sends its message as a header, and headers are bounded."""

import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from common.errors import InvalidInput
from common.process.health import Health
from common.process.lifecycle import raise_open_files_limit
from common.process.rpc import MAX_CONNECTIONS, WAIT_BOUNDS, ErrorInterceptor, details_of, start_server
from common.process.rpc_client import open_channel
from common.process.rpc_connections import connections
from common.registry.wire import json_map
from protos import registry_pb2_grpc
from testing.rows import each_row


@contextmanager
def _door(*, seconds: float = WAIT_BOUNDS.seconds, **methods: Any) -> Iterator[grpc.Channel]:
    """A channel to a door of two threads that has the methods /test/NAME."""
    bounds = replace(WAIT_BOUNDS, seconds=seconds)
    server = grpc.server(ThreadPoolExecutor(2), interceptors=[ErrorInterceptor(bounds)])
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test", methods),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield channel
    server.stop(None)


@each_row("message", ["x" * 3_900, "%" * 3_900, "\N{GRINNING FACE}" * 3_900, "\ud800" * 3_900])
def test_a_long_message_arrives_with_its_own_code(message: str) -> None:
    def refuse(request: bytes, context: grpc.ServicerContext) -> bytes:
        raise InvalidInput(message)

    with _door(Refuse=grpc.unary_unary_rpc_method_handler(refuse)) as channel:
        call: Any = channel.unary_unary("/test/Refuse")
        with pytest.raises(grpc.RpcError) as caught:
            call(b"", timeout=60)
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert str(caught.value.details()).startswith(details_of(message)[:100])


def test_a_short_message_is_told_whole() -> None:
    assert details_of("model m is not registered") == "model m is not registered"
    assert details_of("Größe 5 %") == "Größe 5 %"


def test_json_that_nests_without_end_is_refused() -> None:
    with pytest.raises(InvalidInput, match="state_json is not JSON"):
        json_map("state_json", "[" * 100_000)
    with pytest.raises(InvalidInput, match="state_json is not JSON: recursion limit"):
        json_map("state_json", '{"a":' * 300 + "1" + "}" * 300)
    with pytest.raises(InvalidInput, match="state_json has half a surrogate pair at a"):
        json_map("state_json", '{"a": "\\ud800"}')
    assert (
        json_map("state_json", '{"a": [1e-300, NaN, 123456789012345678901234567890]}')["a"][2]
        == 123456789012345678901234567890
    )


def test_bytes_that_are_no_message_are_the_callers_fault() -> None:
    class Servicer(registry_pb2_grpc.RegistryServiceServicer):
        def UploadFile(self, request_iterator: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
            return next(request_iterator)

    server, port = start_server(
        "127.0.0.1:0",
        lambda server: registry_pb2_grpc.add_RegistryServiceServicer_to_server(Servicer(), server),
        service_names=("headrace.RegistryService",),
        service_health=Health(),
    )
    with open_channel(f"127.0.0.1:{port}") as channel:
        unary: Any = channel.unary_unary("/headrace.RegistryService/GetModel")
        watch: Any = channel.unary_stream("/headrace.RegistryService/Watch")
        upload: Any = channel.stream_unary("/headrace.RegistryService/UploadFile")
        calls = (lambda: unary(b"\xff"), lambda: list(watch(b"\xff")), lambda: upload(iter([b"\xff"])))
        for call in calls:
            with pytest.raises(grpc.RpcError) as caught:
                call()
            assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
            assert "was sent 1 bytes that are not its request" in str(caught.value.details())
    server.stop(None)


def test_connections_that_say_nothing_give_way_to_one_that_comes() -> None:
    raise_open_files_limit()
    server, port = start_server("127.0.0.1:0", lambda server: None, service_names=(), service_health=Health())
    with contextlib.ExitStack() as opened, open_channel(f"127.0.0.1:{port}") as used:
        grpc.channel_ready_future(used).result(timeout=60)
        for _ in range(MAX_CONNECTIONS):
            opened.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60))
        for channel in (opened.enter_context(open_channel(f"127.0.0.1:{port}")), used):
            check = health_pb2_grpc.HealthStub(channel).Check
            assert check(health_pb2.HealthCheckRequest(), timeout=60, wait_for_ready=True).status
        before = _files()
        for _ in range(3):
            assert len(list(connections())) >= MAX_CONNECTIONS
        assert _files() < 2 * before, "looking leaves no files open"
    server.stop(None)


def test_who_reads_a_stream_and_who_serves_it_wake_seldom_while_nothing_comes() -> None:
    """As the kernel counts the waits that each thread has begun; gRPC's own periods make that seven and more."""
    server, port = start_server("127.0.0.1:0", lambda server: None, service_names=(), service_health=Health())
    with open_channel(f"127.0.0.1:{port}") as channel:
        states = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        next(states)

        def read() -> None:
            with contextlib.suppress(grpc.RpcError):  # at the end
                next(states)

        reader = threading.Thread(target=read, name="reader (_serve)")
        reader.start()
        before = _waits("(_serve)")
        reader.join(1.5)
        after = _waits("(_serve)")
        server.stop(None)
        reader.join(60)
    assert len(before) >= 2
    assert max(after[name] - count for name, count in before.items()) < 5


def _waits(kind: str) -> dict[str, int]:
    """How often each thread of this kind has begun to wait."""
    found = {}
    for thread in threading.enumerate():
        if kind in thread.name:
            status = Path(f"/proc/self/task/{thread.native_id}/status").read_text()
            found[thread.name] = int(status.split("\nvoluntary_ctxt_switches:")[1].split()[0])
    return found


def _files() -> int:
    """Open ones that are no connections, which come and go."""
    paths = list(Path("/proc/self/fd").iterdir())
    return sum(os.path.lexists(path) and not path.is_socket() for path in paths)


def test_a_call_whose_client_does_not_send_its_request_holds_no_thread_for_long() -> None:
    def echo(request: bytes, context: grpc.ServicerContext) -> bytes:
        return request

    def count(requests: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
        return b"%d" % sum(1 for _ in requests)

    never = threading.Event()

    def silent(first: list[bytes]) -> Iterator[bytes]:
        yield from first
        never.wait(30)

    methods: dict[str, Any] = {
        "Echo": grpc.unary_unary_rpc_method_handler(echo), "Count": grpc.stream_unary_rpc_method_handler(count),
    }  # fmt: skip
    with _door(seconds=0.2, **methods) as channel:
        echoed: Any = channel.stream_unary("/test/Echo")
        counted: Any = channel.stream_unary("/test/Count")
        waiting = [echoed.future(silent([])), counted.future(silent([b"x"]))]
        unary: Any = channel.unary_unary("/test/Echo")
        assert unary(b"answered", timeout=60) == b"answered"
        assert [call.exception(timeout=60).code() for call in waiting] == [grpc.StatusCode.CANCELLED] * 2
        never.set()
        assert counted(iter([b"a", b"b"]), timeout=60) == b"2", "who sends all is answered"
