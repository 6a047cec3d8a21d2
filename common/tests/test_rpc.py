"""What a status can carry: gRPC sends its message as a header, and headers are bounded."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest

from common.errors import InvalidInput
from common.process.rpc import ErrorInterceptor, details_of
from common.registry.wire import json_map


@pytest.mark.parametrize("message", ["x" * 3_900, "%" * 3_900, "\N{GRINNING FACE}" * 3_900, "\ud800" * 3_900])
def test_a_long_message_arrives_with_its_own_code(message: str) -> None:
    def refuse(request: bytes, context: grpc.ServicerContext) -> bytes:
        raise InvalidInput(message)

    server = grpc.server(ThreadPoolExecutor(1), interceptors=[ErrorInterceptor()])
    handlers: dict[str, Any] = {"Refuse": grpc.unary_unary_rpc_method_handler(refuse)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        call: Any = channel.unary_unary("/test/Refuse")
        with pytest.raises(grpc.RpcError) as caught:
            call(b"", timeout=30)
    server.stop(None)
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert str(caught.value.details()).startswith(details_of(message)[:100])


def test_a_short_message_is_told_whole() -> None:
    assert details_of("model m is not registered") == "model m is not registered"
    assert details_of("Größe 5 %") == "Größe 5 %"


def test_json_that_nests_without_end_is_refused() -> None:
    with pytest.raises(InvalidInput, match="state_json is not JSON"):
        json_map("state_json", "[" * 100_000)
