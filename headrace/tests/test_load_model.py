"""Client.load_model: a version's files from a real registry, as TensorFlow's own object."""

import json
import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from common.definition.gate import Gate
from common.errors import InvalidInput, NotFound
from common.registry.catalog import OffsetRange, RoundPlan, VersionDraft
from common.registry.client import RegistryClient
from common.registry.files import manifest_of
from headrace import Addresses, Client
from headrace.commands.push import checked, saved_model_of
from testing.registry_server import RegistryServer

_DEFINITION = b"name: m\nstream: s\nlabel: y\nestimator: linear_classifier\nfeatures: {x: {type: numeric}}\n"
_SCHEMA = {"features": [{"name": "x", "dtype": "float32"}], "labels": [{"name": "y", "dtype": "int64"}]}
_TIMEOUT_SECONDS = 240.0


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[RegistryServer]:
    """With stream s and model m."""
    server = RegistryServer(tmp_path / "registry")
    server.start()
    with closing(RegistryClient(server.address, timeout_seconds=30.0)) as client:
        client.register_stream("s", json.dumps(_SCHEMA))
        client.register_model("m", stream="s", files={"model.yaml": _DEFINITION}, by="test")
    yield server
    server.stop()


def register_version(registry: RegistryServer, folder: Path) -> int:
    """The folder's files as the next version of m, which goes into production."""
    with closing(RegistryClient(registry.address, timeout_seconds=30.0)) as client:
        known = client.get_model("m")
        start = 10 * known.newest_version
        client.plan_round(
            RoundPlan(
                model="m",
                sequence=known.round_sequence + 1,
                parent_version=known.newest_version,
                stream="s",
                schema_version=1,
                ranges=(OffsetRange(0, start, start + 10),),
                definition_digest=known.definition_digest,
                configuration={"requested": {"allow_signature_change": True}},
                configuration_digest="c",
                code_digest="c",
                seed=7,
                example_count=10,
                trigger="manual",
                last_event_at=1.0,
            )
        )
        lease = client.lease_round("test", ttl_seconds=60.0)
        assert lease is not None
        draft = VersionDraft("weights", {"candidate": {}}, Gate(), 10, 0, 0, manifest_of(folder), 1, {}, {})
        client.upload(folder, draft.files)
        return client.register_version(lease, draft).version


def save(folder: Path) -> None:
    """A SavedModel that doubles under `double`, and a Keras model that triples under `triple`."""
    import tensorflow as tf

    module = tf.Module()
    module.factor = tf.Variable(2.0)
    signature = tf.function(lambda x: {"y": module.factor * x}, input_signature=[tf.TensorSpec([None], name="x")])
    tf.saved_model.save(module, str(folder / "double/saved_model"), signatures=signature)
    network = tf.keras.Sequential([tf.keras.Input((1,)), tf.keras.layers.Rescaling(3.0)])
    network.export(folder / "triple/saved_model", verbose=False)
    network.save(folder / "triple/saved_model/model.keras")
    for name in ("double", "triple"):  # No version is without a checkpoint.
        (folder / name / "checkpoint").mkdir()
        (folder / name / "checkpoint/state").write_text("weights")


def answers(url: str, into: Path) -> tuple[list[float], list[list[float]]]:
    """Of version 1 to 1 and 2, and of what is in production to 1."""
    import tensorflow as tf

    with Client(Addresses(url, url, url, (url,)), timeout_seconds=30.0) as client:
        first = client.load_model("m", 1, into=into)
        live = client.load_model("m")
        return first.signatures["serving_default"](x=tf.constant([1.0, 2.0]))["y"].numpy().tolist(), live.predict(
            tf.constant([[1.0]]), verbose=0
        ).tolist()


def test_a_version_comes_as_its_saved_model_or_as_the_keras_model_that_it_holds(
    registry: RegistryServer, tmp_path: Path
) -> None:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        pool.submit(save, tmp_path).result(timeout=_TIMEOUT_SECONDS)
        assert [register_version(registry, tmp_path / name) for name in ("double", "triple")] == [1, 2]
        told = pool.submit(answers, registry.url, tmp_path / "into").result(timeout=_TIMEOUT_SECONDS)
    assert told == ([2.0, 4.0], [[3.0]])
    assert (tmp_path / "into/saved_model/saved_model.pb").is_file()


def test_what_cannot_be_loaded_is_said(registry: RegistryServer, tmp_path: Path) -> None:
    url = registry.url
    with Client(Addresses(url, url, url, (url,)), timeout_seconds=30.0) as client:
        with pytest.raises(NotFound, match="has no version in production yet"):
            client.load_model("m")
        with pytest.raises(NotFound, match="no version 3"):
            client.load_model("m", 3)


def save_keras(path: Path, code: Path) -> None:
    """A Keras file whose model triples, and one that brings Python along."""
    import tensorflow as tf

    tf.keras.Sequential([tf.keras.Input((1,), name="x"), tf.keras.layers.Rescaling(3.0)]).save(path)
    tf.keras.Sequential([tf.keras.Input((1,), name="x"), tf.keras.layers.Lambda(lambda x: x * 3.0)]).save(code)


@pytest.mark.covers("fmt-savedmodel")
@pytest.mark.timeout(300)
def test_a_keras_file_made_elsewhere_is_pushed_as_a_saved_model_that_answers(
    registry: RegistryServer, tmp_path: Path
) -> None:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        pool.submit(save_keras, tmp_path / "theirs.keras", tmp_path / "code.keras").result(timeout=_TIMEOUT_SECONDS)
    with pytest.raises(InvalidInput, match="Lambda"), saved_model_of(tmp_path / "code.keras"):
        pass
    url = registry.url
    addresses = Addresses(url, url, url, (url,), registry_grpc=registry.address)
    with saved_model_of(tmp_path / "theirs.keras") as directory, Client(addresses, timeout_seconds=60.0) as client:
        assert checked(directory) == ""
        pushed = client.push("m", directory, origin="here", reason="trial")
    assert (pushed.version, pushed.status) == (1, "accepted")
    assert [signature["outputs"] for signature in pushed.contract["signatures"].values()]
    assert pushed.environment["pushed"]["origin"] == "here"
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "saved_model.pb").write_bytes(b"no graph")
    with pytest.raises(InvalidInput, match="is not a SavedModel"):
        checked(broken)
