"""A server that speaks Google Cloud Storage's JSON API, in a thread of the test's process, with an empty bucket."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from http import HTTPStatus
from http.server import HTTPServer
from typing import Any

import pytest

_BUCKET = "bucket"
_MOVE = r"^/storage/v1/b/(?P<bucket_name>[-.\w]+)/o/(?P<object_id>.*[^/]+)/moveTo/o/(?P<dest_object_id>.*[^/]+)$"
"""What Google has and this server has not; clients would ask for it again and again."""
_UPLOAD = r"^/upload/storage/v1/b/(?P<bucket_name>[-.\w]+)/o$"


def _uploaded(request: Any, response: Any, storage: Any) -> None:
    """With Google's `ifGenerationMatch=0`, where there is no such file; this server heeds no conditions."""
    from gcp_storage_emulator.exceptions import NotFound
    from gcp_storage_emulator.handlers import objects

    with suppress(NotFound):
        if "ifGenerationMatch" in request.query:
            storage.get_file_obj(request.params["bucket_name"], request.query["name"][0])
            response.status = HTTPStatus.PRECONDITION_FAILED
            return
    objects.insert(request, response, storage)


def _moved(request: Any, response: Any, storage: Any) -> None:
    from gcp_storage_emulator.handlers import objects

    name = request.params["bucket_name"]
    request.params["dest_bucket_name"] = name
    objects.copy(request, response, storage)
    storage.delete_file(name, request.params["object_id"])


@contextmanager
def gs_bucket() -> Iterator[str]:
    """The bucket's URL. Meanwhile this process finds the server by Google's own variable."""
    from gcp_storage_emulator import server  # here: each worker collects every test, and one of them needs the server
    from gcp_storage_emulator.handlers import buckets, objects
    from gcp_storage_emulator.storage import Storage
    from gcsfs import GCSFileSystem

    storage = Storage(use_memory_fs=True)
    buckets.create_bucket(_BUCKET, storage)
    with HTTPServer(("127.0.0.1", 0), partial(server.RequestHandler, storage)) as listening:
        thread = threading.Thread(target=listening.serve_forever, daemon=True)
        thread.start()
        with pytest.MonkeyPatch.context() as patch:
            own = (
                (_MOVE, {server.POST: _moved}),
                (_UPLOAD, {server.POST: _uploaded, server.PUT: objects.upload_partial}),
            )
            patch.setattr(server, "HANDLERS", (*own, *server.HANDLERS))
            patch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{listening.server_address[1]}")
            patch.setenv("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")  # asks a service that takes no emulator
            GCSFileSystem.clear_instance_cache()
            try:
                yield f"gs://{_BUCKET}"
            finally:
                GCSFileSystem.clear_instance_cache()
                listening.shutdown()
                thread.join(timeout=60)
