"""What TensorFlow writes is read the same where TensorFlow is not (common/saved_model)."""

from pathlib import Path

import pytest
import tensorflow as tf
from tensorflow.core.framework import op_def_pb2
from tensorflow.python.client import pywrap_tf_session

from common.errors import InvalidInput
from common.saved_model.graph import signatures_of
from common.saved_model.layout import check_layout
from common.saved_model.operations import known
from common.saved_model.variables import INDEX_FILE, read_index


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A SavedModel of two variables, a vocabulary file, and a signature and inputs with odd names."""
    (tmp_path / "words.txt").write_text("red\ngreen\n")
    module = tf.Module()
    module.kernel, module.count = tf.Variable(tf.ones([3, 2])), tf.Variable(7, dtype=tf.int64)
    module.words = tf.lookup.StaticVocabularyTable(
        tf.lookup.TextFileInitializer(
            str(tmp_path / "words.txt"), tf.string, tf.lookup.TextFileIndex.WHOLE_LINE, tf.int64,
            tf.lookup.TextFileIndex.LINE_NUMBER,
        ),
        num_oov_buckets=1,
    )  # fmt: skip

    @tf.function(input_signature=[tf.TensorSpec([None, 3], tf.float32, "x"), tf.TensorSpec([None], tf.string, "word")])
    def answer(x: tf.Tensor, word: tf.Tensor) -> dict[str, tf.Tensor]:
        ids = tf.cast(module.words.lookup(word) + module.count, tf.float32)
        return {"y/0": x @ module.kernel + ids[:, tf.newaxis]}

    tf.saved_model.save(module, str(tmp_path / "model"), signatures={"odd name: 1": answer})
    return tmp_path / "model"


def check(folder: Path) -> None:
    sizes = {path.relative_to(folder).as_posix(): path.stat().st_size for path in folder.rglob("*") if path.is_file()}
    graph = check_layout(sizes, lambda path: (folder / path).read_bytes())
    (signature,) = signatures_of(graph).values()
    assert {name: str(tensor) for name, tensor in signature.inputs.items()} == {
        "x": "float32 [n, 3]", "word": "string [n]"
    }  # fmt: skip


@pytest.mark.covers("fmt-savedmodel", "fmt-ckpt-files", "fmt-assets")
def test_variables_and_assets_are_found_and_missed(saved: Path) -> None:
    check(saved)
    index = read_index((saved / INDEX_FILE).read_bytes())
    listed = dict(tf.train.list_variables(str(saved / "variables" / "variables")))
    assert {name: list(one.shape) for name, one in index.variables.items()} == listed
    (data,) = (saved / path for path in index.data_files())
    whole = data.read_bytes()
    data.write_bytes(whole[:-1])
    with pytest.raises(InvalidInput, match="it is cut short"):
        check(saved)
    data.write_bytes(whole)
    (saved / "assets" / "words.txt").rename(saved / "elsewhere.txt")
    with pytest.raises(InvalidInput, match=r"assets/words.txt is not there"):
        check(saved)


def test_damaged_files_are_refused_in_a_sentence_wherever_they_are_cut(saved: Path) -> None:
    for path in ("saved_model.pb", INDEX_FILE):
        whole = (saved / path).read_bytes()
        for length in range(0, len(whole), max(1, len(whole) // 40)):
            (saved / path).write_bytes(whole[:length])
            with pytest.raises(InvalidInput):
                check(saved)
        (saved / path).write_bytes(whole)


@pytest.mark.covers("fmt-op-list")
def test_the_list_of_operations_is_tensorflows() -> None:
    listed = pywrap_tf_session.TF_GetBuffer(pywrap_tf_session.TF_GetAllOpList())
    registered = {op.name for op in op_def_pb2.OpList.FromString(listed).op}
    assert registered <= known() | {"HeadraceTriple"}
    assert {"MatMul", "StatefulPartitionedCall", "XlaCallModule", "PyFunc"} <= known()
