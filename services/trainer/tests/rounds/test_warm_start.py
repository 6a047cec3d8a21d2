"""A first round that starts from another version's weights, or from a file of the definition."""

import io
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import h5py
import keras
import numpy as np
import pytest
from numpy.typing import NDArray

from common.errors import InvalidInput
from services.trainer.learn import checkpoint
from services.trainer.learn.warm_start import source_of_file
from services.trainer.protocol.messages import Done, Failed, Stopped
from services.trainer.tests.support.small_rounds import Platform, definition, events, rebuilt

WORDS = ["red", "green", "blue"]
MOVED = ["green", "teal", "red"]


def model(
    words: list[str],
    *,
    rate: float = 0.0,
    table: str = "word_vector",
    files: Mapping[str, bytes] | None = None,
    **sections: Any,
) -> dict[str, bytes]:
    """A rate of 0 leaves the weights as they start."""
    said = definition(
        estimator="dnn_classifier",
        features={
            "x": {"type": "numeric", "normalize": "zscore"},
            "word": {"type": "vocabulary", "words": words, "oov": "drop"},
            table: {"type": "embedding", "of": "word", "dimension": 3},
        },
        parameters={"hidden_units": [4], "embedding_initializer": {"name": "constant", "value": 0.25}},
        training={"batch_size": 8, "optimizer": {"name": "sgd", "learning_rate": rate}},
        **sections,
    )
    return said | dict(files or {})


@pytest.fixture
def platform(tmp_path: Path) -> Platform:
    return Platform(tmp_path, exports=False, eager=True).append(events(40))


def trained(
    platform: Platform, files: dict[str, bytes], **lease: Any
) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """The version's weights by path, and what its lineage says of its start."""
    ended = platform.train(platform.lease(files, **lease))
    assert isinstance(ended, Done), ended
    directory = platform.directory / "cache" / "model" / str(len(platform.registry.versions))
    arrays = checkpoint.read(directory).arrays
    return (
        {path.removeprefix("model/"): array for path, array in arrays.items() if path.startswith("model/")},
        platform.registry.drafts[-1].environment.get("warm_start", {}),
    )


@pytest.mark.covers("mode-warm-start", "mode-vocab-remap")
def test_a_new_model_starts_from_a_version_and_rows_move_by_their_word(platform: Platform) -> None:
    first, _ = trained(platform, model(WORDS, rate=0.1))
    files = model(MOVED, warm_start={"from": "model@1"}, seed=9)
    lease = platform.lease(files)
    second, report = trained(platform, files)
    table = "word_vector_table/table"
    np.testing.assert_array_equal(second[table][[0, 2]], first[table][[1, 0]])
    assert (second[table][1] == 0.25).all(), "the new word has what the initializer gives"
    assert (first[table] != 0.25).all(axis=None)
    for path in first.keys() - {table}:
        np.testing.assert_array_equal(second[path], first[path])
    assert report["digest"] == platform.registry.versions[0].weights_digest
    assert (report["from"], report["loaded"], report["skipped"]) == ("model@1", sorted(first), [])
    assert report["rows"] == [f"{table}: 2 moved, 1 new, 1 dropped"]
    again = rebuilt(platform, lease, 2)
    assert (again.missing, again.differences) == ((), ())


@pytest.mark.covers("mode-warm-start", "mode-fine-tune", "mode-pretrained-embedding")
def test_some_variables_under_other_names_and_frozen(platform: Platform) -> None:
    first, _ = trained(platform, model(WORDS, rate=0.1))
    said = {
        "from": "model@1",
        "variables": "words_table",
        "rename": {"word_vector_table": "words_table"},
        "freeze": "words_table",
    }
    second, report = trained(platform, model(WORDS, rate=0.1, table="words", warm_start=said))
    np.testing.assert_array_equal(second["words_table/table"], first["word_vector_table/table"])
    assert report["loaded"] == ["words_table/table"]
    assert report["renamed"] == {"word_vector_table/table": "words_table/table"}
    assert "hidden_0/kernel" in report["skipped"]
    assert (second["hidden_0/kernel"] != first["hidden_0/kernel"]).any()


def word_vectors(kind: str, words: list[str], vectors: NDArray[np.float32]) -> bytes:
    if kind == "vectors.txt":
        lines = [" ".join([w, *map(str, row.tolist())]) for w, row in zip(words, vectors, strict=True)]
        return "\n".join([f"{len(words)} {vectors.shape[1]}", *lines]).encode()
    return npz({"words": np.array(words), "vectors": vectors})


def npz(arrays: Mapping[str, Any]) -> bytes:
    content = io.BytesIO()
    np.savez(content, **arrays)
    return content.getvalue()


@pytest.mark.covers("mode-pretrained-embedding")
@pytest.mark.parametrize("name", ["vectors.txt", "vectors.npz"])
def test_word_vectors_of_a_file_are_the_rows_of_a_table_before_and_after_training(
    platform: Platform, name: str
) -> None:
    vectors = np.array([[1.0, 2.0, 3.0], [0.5, -0.5, 0.25], [9.0, 9.0, 9.0]], np.float32)
    said = {"from": name, "variables": "word_vector_table", "freeze": "word_vector_table"}
    content = word_vectors(name, ["blue", "red", "unheard"], vectors)
    weights, report = trained(platform, model(WORDS, rate=0.1, warm_start=said, files={name: content}))
    np.testing.assert_array_equal(weights["word_vector_table/table"][[0, 2]], vectors[[1, 0]])
    assert np.abs(weights["word_vector_table/table"][1]).max() < 2
    assert report["rows"] == ["word_vector_table/table: 2 moved, 1 new, 1 dropped"]


@pytest.mark.covers("mode-warm-start")
def test_what_is_renamed_takes_the_place_of_what_has_that_name_there(platform: Platform) -> None:
    arrays = {name: np.full((4, 4), value, np.float32) for name, value in (("a/kernel", 1), ("hidden_0/kernel", 2))}
    arrays |= {"z/kernel": np.full((4, 4), 3, np.float32)}
    for there, value in (("a", 1), ("z", 3)):
        files = model(
            WORDS, warm_start={"from": "old.npz", "rename": {there: "hidden_0"}}, files={"old.npz": npz(arrays)}
        )
        weights, report = trained(platform, files)
        assert (weights["hidden_0/kernel"] == value).all()
        assert report["renamed"] == {f"{there}/kernel": "hidden_0/kernel"}
        assert "hidden_0/kernel" in report["skipped"]
        assert "hidden_0/bias" in report["new"]
    both = {"from": "old.npz", "rename": {"a": "hidden_0", "z": "hidden_0"}}
    with pytest.raises(InvalidInput, match="rename gives hidden_0/kernel both a/kernel and z/kernel"):
        platform.train(platform.lease(model(WORDS, warm_start=both, files={"old.npz": npz(arrays)})))


@pytest.mark.covers("mode-warm-start")
@pytest.mark.parametrize(
    ("name", "rename"),
    [
        ("old.weights.h5", {"layers/dense/vars/0": "hidden_0/kernel", "layers/dense/vars/1": "hidden_0/bias"}),
        ("old.keras", {"tower": "hidden_0"}),
    ],
)
def test_weights_that_keras_saved_are_found_by_their_path_or_layer(
    name: str, rename: dict[str, str], platform: Platform, tmp_path: Path
) -> None:
    tower = keras.Sequential([keras.Input((4,)), keras.layers.Dense(4, bias_initializer="ones", name="tower")])
    (tower.save_weights if name.endswith(".h5") else tower.save)(tmp_path / name)
    said = {"from": name, "rename": rename}
    content = (tmp_path / name).read_bytes()
    weights, report = trained(platform, model(WORDS, warm_start=said, files={name: content}))
    kernel, bias = tower.get_weights()
    np.testing.assert_array_equal(weights["hidden_0/kernel"], kernel)
    np.testing.assert_array_equal(weights["hidden_0/bias"], bias)
    assert (report["loaded"], report["skipped"]) == (["hidden_0/bias", "hidden_0/kernel"], [])


@pytest.mark.covers("mode-warm-start")
@pytest.mark.parametrize(
    ("said", "array", "sentence"),
    [
        ({"rename": {"tower": "hidden_0"}}, (5, 4), r"hidden_0/kernel is float32 \(4, 4\)"),
        ({"variables": "hiden_0"}, (4, 4), "variables hiden_0 means none of deep/kernel"),
        ({"variables": ["hidden_0", "hiden_1"]}, (4, 4), "variables hiden_1 means none of deep/kernel"),
        ({"rename": {"towr": "hidden_0"}}, (4, 4), "rename says towr, and old.npz has none; it has tower/kernel"),
        ({"rename": {"tower": "hiden_0"}}, (4, 4), "rename says hiden_0, and the model has none; it has deep/"),
        ({}, (4, 4), r"old.npz has none of .*; it has tower/kernel; rename says which is which"),
    ],
)
def test_what_does_not_fit_fails_the_round_with_the_reason(
    platform: Platform, said: dict[str, Any], array: tuple[int, ...], sentence: str
) -> None:
    content = npz({"tower/kernel": np.zeros(array, np.float32)})
    files = model(WORDS, warm_start={"from": "old.npz", **said}, files={"old.npz": content})
    with pytest.raises(InvalidInput, match=sentence):
        platform.train(platform.lease(files))


@pytest.mark.covers("mode-warm-start", "ckpt-resume")
def test_a_later_round_and_a_resumed_one_do_not_start_again(platform: Platform) -> None:
    trained(platform, model(WORDS, rate=0.1))
    files = model(WORDS, rate=0.1, warm_start={"from": "model@1"}, seed=9)
    undisturbed, _ = trained(platform, files)
    lease = platform.lease(files)
    stopped = platform.train(lease, stop_requested=platform.after_blocks(1), resume_interval_seconds=0.0)
    assert isinstance(stopped, Stopped)
    resumed, _ = trained(platform, files)
    platform.registry.resume_point = None
    for path, array in undisturbed.items():
        np.testing.assert_array_equal(resumed[path], array)
    platform.append(events(60, seed=2))
    _, report = trained(platform, files, parent_version=2)
    assert report == {}


def h5(make: Callable[[h5py.File], object]) -> bytes:
    file = io.BytesIO()
    with h5py.File(file, "w") as opened:
        make(opened)
    return file.getvalue()


def header_of(shape: str) -> bytes:
    """An npz of one array that claims a shape and has no values."""
    text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}".ljust(117).encode() + b"\n"
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("x.npy", b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text)
    return file.getvalue()


def grown() -> bytes:
    """160 MB of zeros in 160 kB."""
    file = io.BytesIO()
    np.savez_compressed(file, x=np.zeros(40_000_000, np.float32))
    return file.getvalue()


@pytest.mark.parametrize(
    ("path", "content", "words"),
    [
        ("w.npz", npz({"x": np.array([{"a": 1}], object)}), "allow_pickle=False"),
        ("w.npz", b"\x80\x04\x95 pickle", "not a zip file"),
        ("w.npz", b"", "not a zip file"),
        ("w.npz", npz({"x": np.zeros(1)})[:-30], "not a zip file"),
        ("w.npz", grown(), "would become 16"),
        ("w.npz", header_of("(1099511627776, 1048576)"), "cannot be read"),
        ("w.npz", header_of("(1000000000,)"), "cannot be read"),
        ("w.h5", b"", "cannot be read"),
        ("w.keras", npz({"x": np.zeros(1)}), "no item named 'model.weights.h5'"),
        ("w.h5", h5(lambda f: f.create_dataset("x", (4,), "u1", external=[("/etc/passwd", 0, 4)])), "another file"),
        ("w.h5", h5(lambda f: f.create_dataset("x", (1 << 40,), "f4", chunks=(1024,))), "would become 4398046511104"),
        ("w.h5", h5(lambda f: f.create_dataset("x", data=["a", "b"])), "holds object, no numbers"),
        ("w.h5", h5(lambda f: f.create_dataset("x", (1,), "f4", maxshape=(None,), chunks=(1 << 26,))), "268435456"),
        ("w.h5", h5(lambda f: h5py.h5d.create(f.id, b"x", h5py.h5t.UNIX_D32LE, h5py.h5s.create_simple((3,)))),
         "cannot be read"),
        ("w.npz", header_of("(0, 99999999999999999999999)"), "cannot be read"),
        ("w.npz", npz({"words": np.array(5), "vectors": np.zeros((1, 2))}), "cannot be read"),
        ("w.npz", npz({"words": np.array(["a"]), "vectors": np.array([["x"]])}), "vectors holds <U1, no numbers"),
        ("w.txt", b"red 1 2\nred 1 2", "each word once"),
        ("w.txt", b"9 2\nred 1 2\nblue 1 2", "says that it has 9 words, and has 2"),
        ("w.txt", b"red 1 x", "cannot be read"),
    ],
)  # fmt: skip
def test_a_hostile_file_is_refused_in_a_sentence(path: str, content: bytes, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        source_of_file(path, content)


def test_weights_that_are_no_numbers_fail_the_round_by_name(platform: Platform) -> None:
    table = np.full((3, 3), np.nan, np.float32)
    files = model(WORDS, files={"w.npz": npz({"table": table})}, warm_start={"from": "w.npz", "variables": ["*table*"],
                  "rename": {"table": "word_vector_table/table"}})  # fmt: skip
    with pytest.raises(InvalidInput, match="table holds values that are no finite numbers"):
        platform.train(platform.lease(files))


@pytest.mark.covers("ckpt-save", "mode-warm-start")
def test_a_subset_has_its_variables_alone_and_another_model_starts_from_it(platform: Platform) -> None:
    export = {"subsets": {"vectors": ["word_vector_table"], "first": ["hidden_*/kernel", "word_*"]}}
    weights, _ = trained(platform, model(WORDS, rate=0.1, export=export))
    folder = platform.directory / "cache/model/1/subsets"
    with np.load(folder / "vectors.npz") as vectors, np.load(folder / "first.npz") as first:
        assert vectors.files == ["word_vector_table/table"]
        assert sorted(first.files) == ["hidden_0/kernel", "word_vector_table/table"]
        for path in first.files:
            np.testing.assert_array_equal(first[path], weights[path])
    assert {"subsets/first.npz", "subsets/vectors.npz"} <= {file.path for file in platform.registry.versions[0].files}
    content = (folder / "vectors.npz").read_bytes()
    started, _ = trained(platform, model(WORDS, files={"vectors.npz": content}, warm_start={"from": "vectors.npz"}))
    np.testing.assert_array_equal(started["word_vector_table/table"], weights["word_vector_table/table"])
    failed = platform.train(
        platform.lease(model(WORDS, export={"subsets": {"vectors": ["word_vector_table", "wrod*"]}}))
    )
    assert isinstance(failed, Failed)
    assert failed.reason.startswith("export: subsets: vectors: wrod* means none of deep/kernel, hidden_0/bias, ")
