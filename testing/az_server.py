"""A server that speaks Azure's blob storage (Azurite), in a process of the test's own, with an empty container."""

import socket
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from testing import programs
from testing.processes import free_port
from testing.waiting import wait_until

AZURE = pytest.param("az", marks=pytest.mark.needs("azurite-blob", "node"))
"""For tests of several stores."""
_ACCOUNT = "account"
_KEY = "a2V5"
"""Of no account of Azure: the server takes those of AZURITE_ACCOUNTS."""


@contextmanager
def az_container() -> Iterator[str]:
    """The container's URL. Meanwhile this process, and those that it starts, find the server by adlfs's variable."""
    from adlfs import AzureBlobFileSystem  # here: each worker collects every test, and few of them need the server

    port = free_port()
    server = f"DefaultEndpointsProtocol=http;AccountName={_ACCOUNT};AccountKey={_KEY};"
    server += f"BlobEndpoint=http://127.0.0.1:{port}/{_ACCOUNT};"
    container = f"container-{uuid.uuid4().hex}"
    command = [str(programs.where("azurite-blob")), "--inMemoryPersistence", "--disableTelemetry", "--silent"]
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setenv("AZURITE_ACCOUNTS", f"{_ACCOUNT}:{_KEY}")
        patch.setenv("AZURE_STORAGE_CONNECTION_STRING", server)
        AzureBlobFileSystem.clear_instance_cache()
        process = subprocess.Popen(
            [*command, "--blobPort", str(port), "--skipApiVersionCheck"], cwd=folder, stdout=subprocess.DEVNULL
        )
        try:
            wait_until(lambda: _answers(port), "Azurite answers")
            AzureBlobFileSystem().mkdir(container)
            yield f"az://{container}"
        finally:
            AzureBlobFileSystem.clear_instance_cache()
            process.kill()
            process.wait(timeout=60)


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
