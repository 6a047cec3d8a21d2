"""A first round that starts from another version's weights, or from a file of the definition."""

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from common.definition.model import parse_definition
from common.errors import InvalidInput
from services.trainer.learn import checkpoint
from services.trainer.rounds.assignment import Done, Stopped
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
        parameters={"hidden_units": [4]},
        training={"batch_size": 8, "optimizer": {"name": "sgd", "learning_rate": rate}},
        **sections,
    )
    return said | dict(files or {})


@pytest.fixture
def platform(tmp_path: Path) -> Platform:
    made = Platform(tmp_path)
    made.append(events(60))
    return made


def trained(
    platform: Platform, files: dict[str, bytes], **lease: Any
) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """The version's weights by path, and what its lineage says of its start."""
    ended = platform.train(platform.lease(files, **lease))
    assert isinstance(ended, Done), ended
    directory = platform.directory / "cache" / "model" / str(ended.version)
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
    assert (second[table][1] != first[table]).all(axis=None)
    for path in first.keys() - {table}:
        np.testing.assert_array_equal(second[path], first[path])
    assert report["digest"] == platform.registry.versions[0].weights_digest
    assert (report["from"], report["loaded"], report["skipped"]) == ("model@1", sorted(first), [])
    assert report["rows"] == [f"{table}: 2 moved, 1 new, 1 dropped"]
    again = rebuilt(platform, lease, 2)
    assert (again.missing, again.differences) == ((), ())


@pytest.mark.covers("mode-warm-start", "mode-fine-tune")
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
        return "\n".join(" ".join([w, *map(str, row.tolist())]) for w, row in zip(words, vectors, strict=True)).encode()
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
def test_arrays_of_a_file_are_found_by_path(platform: Platform) -> None:
    content = npz({"tower/kernel": np.full((4, 4), 0.5, np.float32)})
    said = {"from": "old.npz", "rename": {"tower": "hidden_0"}}
    weights, report = trained(platform, model(WORDS, warm_start=said, files={"old.npz": content}))
    np.testing.assert_array_equal(weights["hidden_0/kernel"], np.full((4, 4), 0.5, np.float32))
    assert report["renamed"] == {"tower/kernel": "hidden_0/kernel"}
    assert "hidden_0/bias" in report["new"]


@pytest.mark.covers("mode-warm-start")
@pytest.mark.parametrize(
    ("said", "array", "sentence"),
    [
        ({"rename": {"tower": "hidden_0"}}, (5, 4), r"hidden_0/kernel is float32 \(4, 4\)"),
        ({"variables": "hiden_0"}, (4, 4), "variables hiden_0 means none of deep/kernel"),
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


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ({"from": "model@production"}, "MODEL@VERSION with the number of a version"),
        ({"from": "gone.npz"}, "got 'gone.npz'"),
        ({"from": "model@1", "vars": "*"}, r"unknown keys \['vars'\]"),
        ({"from": "model@1", "rename": ["a"]}, "rename must be a mapping"),
    ],
)
def test_a_section_that_cannot_be_meant_is_refused(said: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidInput, match=sentence):
        parse_definition(model(WORDS, warm_start=said))


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
