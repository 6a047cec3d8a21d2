"""What the contract's tests call: `python -m services.serving`, started with TensorFlow Serving's flags on the folder
of the contract's model."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from services.serving.options.model_server_config import single_model_config
from services.serving.tests.support.contract_cases import CALLS
from services.serving.tests.support.printed import printed
from services.serving.tests.support.standalone_server import StandaloneServer
from testing import plain_http
from testing.redis_server import RedisServer
from testing.warm_python import lean_command

_BUILD_SECONDS = 240
_BASE, _ANSWERS = "models", "answers.json"


class ContractServer:
    """Model m, version 7, label production; its answers as TensorFlow gives them."""

    def __init__(self, url: str, grpc_port: int, expected: list[dict[str, Any]]) -> None:
        self.grpc_port = grpc_port
        self._expected = expected
        self._client = plain_http.client(base_url=url, timeout=60)

    def expected(self, index: int) -> dict[str, np.ndarray]:
        """TensorFlow's answer to a call of CALLS."""
        return {name: np.array(flat, object).reshape(shape) for name, (shape, flat) in self._expected[index].items()}

    def post(self, path: str, body: bytes | str | dict[str, Any], **fields: Any) -> httpx.Response:
        content = json.dumps(body) if isinstance(body, dict) else body
        return self._client.post(f"/v1/models/{path}", content=content, **fields)

    def request(self, method: str, path: str, **fields: Any) -> httpx.Response:
        # The target as it stands: the client would leave out a fragment and an empty query.
        return self._client.request(method, path, extensions={"target": path.encode()}, **fields)

    def fault(self, path: str, body: bytes | str | dict[str, Any]) -> tuple[int, str]:
        response = self.post(path, body)
        assert response.headers["content-type"] == "application/json"
        assert set(response.json()) == {"error"}, response.text
        return response.status_code, response.json()["error"]


@dataclass(frozen=True)
class ContractModel:
    """`base`: the folder of its one version, 7."""

    base: Path
    expected: list[dict[str, Any]]


def build_contract_model(python: Path, folder: Path) -> None:
    """The model and TensorFlow's answers."""
    command = lean_command(python, "services.serving.tests.support.contract_model", str(folder / _BASE / "7"))
    (folder / _ANSWERS).write_text(printed(command, stdin=json.dumps(CALLS)))


def read_contract_model(folder: Path) -> ContractModel:
    """What `build_contract_model` has made."""
    return ContractModel(folder / _BASE, json.loads((folder / _ANSWERS).read_text()))


@contextmanager
def standalone(model: ContractModel, redis_server: RedisServer) -> Iterator[ContractServer]:
    """As an outside suite would start it; the label comes by HandleReloadConfigRequest."""
    server = StandaloneServer(redis_server.url, "--model_name=m", f"--model_base_path={model.base}")
    try:
        server.wait_ready()
        config = single_model_config("m", str(model.base))
        config.model_config_list.config[0].version_labels["production"] = 7
        server.reload(config)
        yield ContractServer(server.url, server.port, model.expected)
        assert server.terminate() == 0
    finally:
        server.kill()
