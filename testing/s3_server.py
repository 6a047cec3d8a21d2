"""A server that speaks S3 (moto's), in a thread of the test's process, with an empty bucket."""

import logging
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def s3_bucket(host: str = "127.0.0.1") -> Iterator[str]:
    """The bucket's URL; the server listens at this address of the machine. Meanwhile this process, and those that it
    starts, find it by AWS's own variables."""
    import boto3  # here: each worker collects every test, and one of them needs the server
    from moto.moto_server.threaded_moto_server import ThreadedMotoServer
    from s3fs import S3FileSystem

    logging.getLogger("werkzeug").setLevel(logging.WARNING)
    server = ThreadedMotoServer(ip_address=host, port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    settings = {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}", "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_DEFAULT_REGION": "us-east-1",
    }  # fmt: skip
    bucket = f"bucket-{uuid.uuid4().hex}"
    with pytest.MonkeyPatch.context() as patch:
        for name, value in settings.items():
            patch.setenv(name, value)
        S3FileSystem.clear_instance_cache()
        try:
            boto3.client("s3").create_bucket(Bucket=bucket)
            yield f"s3://{bucket}"
        finally:
            S3FileSystem.clear_instance_cache()
            server.stop()
