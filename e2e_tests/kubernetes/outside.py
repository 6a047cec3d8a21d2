"""What several registries need beside the node: PostgreSQL and an object store, as servers of this machine that pods
reach at the address of the cluster's DNS; and images whose registry has the library of that store.
"""

import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import docker
from e2e_tests.kubernetes.cluster import SERVICES
from testing.postgres_server import PASSWORD, PostgresServer
from testing.s3_server import s3_bucket

_ADDRESS, _PODS = "10.88.255.53", "10.88.7.0/24"
"""Of node/up.sh."""
_STORE, _DATABASE = "store", "postgres"
"""Secrets."""
_OF_STORE = ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION")
_REPOSITORY = Path(__file__).parents[2]


@contextmanager
def servers(registries: int) -> Iterator[tuple[Mapping[str, Any], list[Mapping[str, Any]]]]:
    """Values of the chart with which this many registries use the servers, and the Secrets that they name."""
    if registries == 1:
        yield {}, []
        return
    with tempfile.TemporaryDirectory() as folder, s3_bucket(_ADDRESS) as bucket:
        Path(folder).chmod(0o755)
        database = PostgresServer(Path(folder) / "postgres", host=_ADDRESS, network=_PODS)
        database.start()
        try:
            registry = {
                "replicas": registries,
                "database": {"url": database.url(database.new_database()), "passwordSecret": {"name": _DATABASE}},
                "settings": {"BLOBS": f"{bucket}/registry", "PRESIGNED_SECONDS": "600"},
                "environmentSecret": _STORE,
            }
            yield {"registry": registry}, [_secret(_DATABASE, {"password": PASSWORD}), _secret(_STORE, _environment())]
        finally:
            database.stop()


def _environment() -> dict[str, str]:
    """As s3_bucket has set it for this process."""
    return {name: os.environ[name] for name in _OF_STORE}


def _secret(name: str, texts: Mapping[str, str]) -> Mapping[str, Any]:
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": dict(texts)}


def earlier_release(commit: str, folder: Path, bases: Path) -> tuple[str, Path]:
    """Images of the tree at this commit, with the tag that is returned, and its chart. The folder keeps the tree."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short=8", "--verify", f"{commit}^{{commit}}"], cwd=_REPOSITORY, check=True,
        capture_output=True, text=True, timeout=60,
    ).stdout.strip()  # fmt: skip
    tree = folder / commit
    tree.mkdir(parents=True, exist_ok=True)
    packed = subprocess.run(["git", "archive", commit], cwd=_REPOSITORY, check=True, capture_output=True, timeout=60)
    subprocess.run(["tar", "-x"], cwd=tree, input=packed.stdout, check=True, timeout=60)
    chart = tree / "deploy" / "helm" / "headrace"
    images = [f"headrace/{service}:{commit}" for service in SERVICES]
    if not subprocess.run(["docker", "image", "inspect", *images], capture_output=True, timeout=60).returncode:
        return commit, chart  # of an earlier run
    environment = {**os.environ, "HEADRACE_TAG": commit, "COMPOSE_FILE": "docker-compose.yml"}
    shutil.copy(bases, tree / ".env")
    wheels = _REPOSITORY / "build" / "wheelhouse"
    if wheels.is_dir() and not (tree / "build").exists():  # what is in both is not downloaded twice
        shutil.copytree(wheels, tree / "build" / "wheelhouse", copy_function=os.link)
        shutil.copy(f"{wheels}.filled", tree / "build")
    subprocess.run(["make", "images"], cwd=tree, env=environment, check=True, timeout=3600)
    return commit, chart


def make_release(tag: str, name: str, *, has_store: bool) -> None:
    """Images that do the same as those of the tag, since another release's would have other files in them. has_store:
    the registry's has the library of S3."""
    engine = docker.from_env(timeout=300)
    for service in SERVICES:
        recipe = f"FROM headrace/{service}:{tag}\nLABEL headrace.release={name}\n"
        with tempfile.TemporaryDirectory() as folder:
            if has_store and service == "registry":
                _install(Path(folder) / "store")
                recipe += "COPY store /venv/lib/python3.11/site-packages\n"
            (Path(folder) / "Dockerfile").write_text(recipe)
            context = io.BytesIO()
            with tarfile.open(fileobj=context, mode="w") as packed:
                packed.add(folder, arcname=".")
            context.seek(0)
            engine.images.build(
                fileobj=context, custom_context=True, tag=f"headrace/{service}:{name}", rm=True, forcerm=True
            )


def _install(folder: Path) -> None:
    """By this machine's pip, which knows the way to an index."""
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(folder)]
    subprocess.run([*pip, "-c", str(_REPOSITORY / "constraints.txt"), "s3fs"], check=True, timeout=300)
