"""Images hold no secret: not in their history, not in what a container begins with, and in no layer, also where a later
layer has taken the file away."""

import contextlib
import io
import re
import secrets
import tarfile
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from docker.errors import DockerException
from docker.models.images import Image

import docker

_SERVICES = ("registry", "ingest", "trainer", "serving")
_SAVED = ("registry", "ingest")
"""All are made by the same lines; those of TensorFlow have 1.5 GB each."""
_ARGUMENTS = {"SERVICE", "HTTP_PORT", "DEVICES", "BASE"}
_PACKAGES = ("usr/", "lib/", "venv/", "var/lib/")
"""Of Debian, and of requirements/*.txt by their digests: some bring keys of their tests."""
_KEPT = ("access/", "token/", "tokens/", "tls/", "data/")
"""Where volumes are, in containers."""
_SECRET = re.compile(rb"\bhr_[A-Za-z0-9_-]{43}\b|-----BEGIN [A-Z ]*PRIVATE KEY-----\s+[A-Za-z0-9+/=]{40}")
_SECRETS_NAME = re.compile(r"(^|/)(\.env|\.netrc|\.pypirc|pip\.conf|id_[a-z0-9]+|[^/]*\.(pem|key|p12))$")


@pytest.fixture(scope="module")
def engine(mode: str) -> Iterator[docker.DockerClient]:
    if mode != "compose":
        pytest.skip("a local platform has no images")
    found = docker.from_env(timeout=300)
    yield found
    found.close()


def told_by(image: Image) -> list[str]:
    """The secrets in its history and in the configuration of its containers, a sentence each."""
    found = []
    for layer in image.history():
        line = str(layer["CreatedBy"])
        given = re.match(r"(?:RUN )?\|\d+ (.*?) /bin/sh", line, re.DOTALL)
        named = set(re.findall(r"(?:^|\s)([A-Za-z_]+)=", given[1])) if given else set()
        found += [f"the build argument {name} of {line[:80]!r}" for name in sorted(named - _ARGUMENTS)]
        found += [f"a secret in {line[:80]!r}"] if _SECRET.search(line.encode()) else []
    configuration = image.attrs["Config"]
    for part in ("Env", "Labels", "Cmd", "Entrypoint"):
        found += [f"a secret in {part}"] if _SECRET.search(repr(configuration.get(part)).encode()) else []
    return found


def held_by(image: Image) -> list[str]:
    """The secrets in its layers, a sentence each."""
    found = []
    for member, content in _files(image.save(chunk_size=1 << 20)):
        name = member.name.removeprefix("./")
        if name.startswith(_PACKAGES):
            continue
        if name.startswith(_KEPT) or _SECRETS_NAME.search(name):
            found.append(f"the file {name}")
        if _SECRET.search(content):
            found.append(f"a secret in {name}")
    return found


def _files(saved: Iterable[bytes]) -> Iterator[tuple[tarfile.TarInfo, bytes]]:
    """Of all layers; those of packages without their content."""
    with tarfile.open(fileobj=_Pieces(saved), mode="r|") as image:  # type: ignore[call-overload]  # it has read()
        for entry in image:
            layer = image.extractfile(entry) if entry.isfile() else None
            if layer is None or entry.size < tarfile.BLOCKSIZE:
                continue
            try:
                with tarfile.open(fileobj=layer, mode="r|*") as files:
                    for member in filter(tarfile.TarInfo.isfile, files):
                        is_read = not member.name.removeprefix("./").startswith(_PACKAGES)
                        content: Any = files.extractfile(member) if is_read else io.BytesIO()
                        yield member, content.read()
            except tarfile.ReadError:  # of the image's own documents
                continue


class _Pieces:
    """A file of pieces."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces, self._left = iter(pieces), b""

    def read(self, count: int) -> bytes:
        while len(self._left) < count and (piece := next(self._pieces, b"")):
            self._left += piece
        found, self._left = self._left[:count], self._left[count:]
        return found


@pytest.mark.parametrize("service", _SERVICES)
def test_an_image_tells_and_holds_no_secret(engine: docker.DockerClient, service: str) -> None:
    image = engine.images.get(f"headrace/{service}:latest")
    assert told_by(image) == []
    if service in _SAVED:
        assert held_by(image) == []


def test_a_secret_that_was_planted_is_found_though_a_later_line_removes_it(engine: docker.DockerClient) -> None:
    tag, token = f"headrace/planted:{secrets.token_hex(4)}", f"hr_{secrets.token_urlsafe(32)}"
    recipe = (
        f"FROM headrace/registry:latest\nARG TOKEN\nUSER 0\nRUN echo $TOKEN > /app/settings\nRUN rm /app/settings\n"
        f"ENV SERVICE_TOKEN={token}\n"
    )
    try:
        image, _ = engine.images.build(
            fileobj=io.BytesIO(recipe.encode()), tag=tag, buildargs={"TOKEN": token}, rm=True, forcerm=True
        )
        told, held = told_by(image), held_by(image)
    finally:
        with contextlib.suppress(DockerException):  # it was not built
            engine.images.remove(tag, force=True)
    assert any(one.startswith("the build argument TOKEN") for one in told)
    assert "a secret in Env" in told
    assert held == ["a secret in app/settings"]
