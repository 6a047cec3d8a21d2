"""What TensorFlow writes is read the same where TensorFlow is not (common/saved_model)."""

import struct
from collections.abc import Callable
from pathlib import Path

import pytest
import tensorflow as tf

from common.errors import InvalidInput
from common.saved_model.graph import Graph
from common.saved_model.layout import check_layout
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


def graph_of(folder: Path) -> Graph:
    sizes = {path.relative_to(folder).as_posix(): path.stat().st_size for path in folder.rglob("*") if path.is_file()}
    return check_layout(sizes, lambda path: (folder / path).read_bytes())


def check(folder: Path) -> None:
    (signature,) = graph_of(folder).signatures.values()
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


def _nested(body: Callable[[tf.Tensor], tf.Tensor]) -> Callable[[tf.Tensor], tf.Tensor]:
    """The same in a loop's body, in a branch, in a function of its own."""
    inner = tf.function(body, autograph=False)

    def outer(x: tf.Tensor) -> tf.Tensor:
        _, found = tf.while_loop(
            lambda i, _: i < 1, lambda i, y: (i + 1, tf.cond(i < 1, lambda: inner(y), lambda: y)), (0, x)
        )
        return found

    return outer


def _table_of(path: tf.Tensor) -> tf.Tensor:
    table = tf.raw_ops.AnonymousHashTable(key_dtype=tf.string, value_dtype=tf.int64)
    tf.raw_ops.InitializeTableFromTextFileV2(table_handle=table, filename=path, key_index=-2, value_index=-1)
    return tf.raw_ops.LookupTableSizeV2(table_handle=table)


@tf.function(input_signature=[tf.TensorSpec([], tf.string)])
def _table_of_argument(path: tf.Tensor) -> tf.Tensor:
    return _table_of(path)


def _after(made: object, x: tf.Tensor) -> tf.Tensor:
    with tf.control_dependencies([made]):
        return tf.identity(x)


@pytest.mark.covers("fmt-op-list")
@pytest.mark.parametrize(
    ("body", "words"),
    [
        (lambda x: x + tf.cast(tf.strings.length(tf.io.read_file("/etc/passwd")), tf.float32), "(ReadFile) reads or"),
        (lambda x: _after(tf.io.write_file("/tmp/x", "y"), x), "(WriteFile) reads or"),
        (lambda x: _after(tf.print("y", output_stream="file:///tmp/x"), x), "(PrintV2) prints into file:///tmp/x"),
        (lambda x: x + tf.cast(_table_of(tf.constant("/etc/passwd")), tf.float32), "none of its assets"),
        (lambda x: x + tf.cast(_table_of_argument(tf.constant("/etc/passwd")), tf.float32), "none of its assets"),
        (lambda x: _after(tf.raw_ops.SaveV2(prefix="/tmp/x", tensor_names=["a"], shape_and_slices=[""], tensors=[x]),
                          x), "(SaveV2) is the saver's"),
        (lambda x: x + tf.reshape(tf.raw_ops.RestoreV2(prefix="/tmp/x", tensor_names=["a"], shape_and_slices=[""],
                                                       dtypes=[tf.float32])[0], []), "(RestoreV2) is the saver's"),
        (lambda x: x + tf.cast(tf.data.TFRecordDataset("/etc/passwd").cardinality(), tf.float32), "TFRecordDataset"),
        (lambda x: x + tf.raw_ops.ImmutableConst(dtype=tf.float32, shape=[], memory_region_name="/etc/passwd"),
         "(ImmutableConst) reads or"),
        (lambda x: x + tf.cast(tf.size(tf.raw_ops.RecordInput(file_pattern="/etc/*")), tf.float32),
         "(RecordInput) reads or"),
        (lambda x: x + tf.random.fixed_unigram_candidate_sampler([[0]], 1, 1, False, 9, "/etc/passwd", seed=1)[2][0],
         "(FixedUnigramCandidateSampler) reads its vocabulary from a file"),
        (lambda x: _after(tf.raw_ops.CollectiveReduceV2(input=x, group_size=2, group_key=1, instance_key=1,
                                                        ordering_token=[], merge_op="Add", final_op="Id"), x),
         "(CollectiveReduceV2) speaks to other machines"),
        (lambda x: tf.raw_ops.DebugIdentityV2(input=x, debug_urls=["file:///tmp/x"]), "(DebugIdentityV2) reads or"),
        (lambda x: _after(tf.raw_ops.Abort(error_msg="x"), x), "(Abort) ends the process"),
    ],
)  # fmt: skip
def test_what_touches_files_is_found_in_whatever_it_is_wrapped(
    tmp_path: Path, body: Callable[[tf.Tensor], tf.Tensor], words: str
) -> None:
    module = tf.Module()
    module.weight = tf.Variable(1.0)
    for name, wrapped in (("plain", body), ("nested", _nested(body))):
        answer = tf.function(
            lambda x, call=wrapped: {"y": call(x) * module.weight},
            [tf.TensorSpec([], tf.float32, "x")],
            autograph=False,
        )
        tf.saved_model.save(module, str(tmp_path / name), signatures=answer)
        with pytest.raises(InvalidInput) as refused:
            graph_of(tmp_path / name)
        assert words in refused.value.message


def test_an_index_that_would_grow_in_memory_is_refused() -> None:
    """Each name takes the whole one before it and a byte: 4 MB of file would be 500 GB of names."""
    entries = [(0, b"k" * 100), *((100 + i, b"k") for i in range(100_000))]
    block = b"".join(_number(shared) + _number(len(own)) + b"\0" + own for shared, own in entries) + bytes(4)
    with pytest.raises(InvalidInput, match="a name has 4097 bytes"):
        read_index(_table(block, [(0, len(block))]))
    with pytest.raises(InvalidInput, match="lies within its predecessor"):
        read_index(_table(b"\0\1\0a" + bytes(4), [(0, 8)] * 1000))


def _table(block: bytes, places: list[tuple[int, int]]) -> bytes:
    """One block of entries, an index that names it, and a footer."""
    handles = [_number(offset) + _number(size) for offset, size in places]
    index = b"".join(b"\0\x01" + _number(len(handle)) + b"a" + handle for handle in handles) + bytes(4)
    start = len(block) + 5
    footer = (b"\0\0" + _number(start) + _number(len(index))).ljust(40, b"\0")
    return block + bytes(5) + index + bytes(5) + footer + struct.pack("<Q", 0xDB4775248B80FB57)


def _number(value: int) -> bytes:
    """A varint."""
    return bytes([value & 0x7F | 0x80]) + _number(value >> 7) if value > 0x7F else bytes([value])
