"""`python -m services.serving` started with TensorFlow Serving's flags: nothing beside it but a Redis."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import grpc
import httpx

from protos import tfserving_config_pb2 as config_pb2
from testing import plain_http
from testing.processes import free_port
from testing.waiting import DEADLINE_SECONDS, wait_until

_LOAD_SECONDS = 240.0
"""TensorFlow is imported, a model is loaded."""


def copy_version(source: Path, base: Path, version: int | str) -> Path:
    """As a careful person would: aside, then renamed."""
    aside = base / f".{version}.partial"
    shutil.copytree(source, aside)
    return aside.rename(base / str(version))


class StandaloneServer:
    """The process; `url` and `grpc_address` are where it listens."""

    def __init__(
        self, redis_url: str, *flags: str, is_stubbed: bool = False, scheme: str = "http", **environment: str
    ) -> None:
        self.port, self.rest_port = free_port(), free_port()
        self.url = f"{scheme}://127.0.0.1:{self.rest_port}"
        self.grpc_address = f"127.0.0.1:{self.port}"
        self.socket_path = ""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("SERVING_")}
        main = "services.serving.tests.support.stubbed_serving" if is_stubbed else "services.serving"
        ports = [f"--port={self.port}", f"--rest_api_port={self.rest_port}", f"--redis_url={redis_url}"]
        self.process = subprocess.Popen(
            [sys.executable, "-m", main, *ports, *flags],
            env=inherited | {"SERVING_LOG_LEVEL": "WARNING", "SERVING_IDLE_LOAD_SECONDS": "0"} | environment,
            stdin=subprocess.DEVNULL,
        )

    def get(self, path: str, **fields: Any) -> httpx.Response:
        return plain_http.get(self.url + path, timeout=60, **fields)

    def predict(self, path: str, *rows: list[float]) -> httpx.Response:
        return plain_http.post(f"{self.url}/v1/models/{path}:predict", json={"instances": list(rows)}, timeout=60)

    def answers(self, path: str, status: int = 200) -> bool:
        try:
            return self.get(path).status_code == status
        except httpx.TransportError:
            return False

    def states(self, model: str) -> dict[int, str]:
        """{version: state}."""
        response = self.get(f"/v1/models/{model}")
        if response.status_code == 404:
            return {}
        return {int(item["version"]): item["state"] for item in response.json()["model_version_status"]}

    def wait_ready(self) -> None:
        wait_until(lambda: self.answers("/readyz"), "the server being ready", seconds=_LOAD_SECONDS)

    def wait_states(self, model: str, expected: dict[int, str]) -> None:
        """Until exactly these versions are in these states; ended ones count as not there."""

        def live() -> dict[int, str]:
            return {version: state for version, state in self.states(model).items() if state != "END"}

        wait_until(lambda: live() == expected, f"{model} being {expected}", seconds=_LOAD_SECONDS)

    def reload(self, config: config_pb2.ModelServerConfig) -> config_pb2.ReloadConfigResponse:
        """HandleReloadConfigRequest; raises grpc.RpcError."""
        with grpc.insecure_channel(self.grpc_address) as channel:
            call = channel.unary_unary(
                "/tensorflow.serving.ModelService/HandleReloadConfigRequest",
                request_serializer=config_pb2.ReloadConfigRequest.SerializeToString,
                response_deserializer=config_pb2.ReloadConfigResponse.FromString,
            )
            return call(config_pb2.ReloadConfigRequest(config=config), timeout=DEADLINE_SECONDS)

    def terminate(self) -> int:
        """SIGTERM; returns the exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=DEADLINE_SECONDS)

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(timeout=DEADLINE_SECONDS)
