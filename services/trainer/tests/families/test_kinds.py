"""Tensors, images and sequences in rounds: decoded as the schema says, resumed and rebuilt to the same bits, served."""

import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from numpy.typing import NDArray

from common.errors import InvalidInput
from common.examples.codec import ExampleCodec
from common.images import fault_of_image
from common.kinds import ImageKind
from common.schema import Feature, Schema
from protos.example_pb2 import Example, SequenceExample
from services.trainer.families import module_inputs
from services.trainer.features.decoding import Decoder, decoded
from services.trainer.features.parsing import parse, parse_in_graph
from services.trainer.tests.families.test_modules import module, trained_twice
from services.trainer.tests.support.small_rounds import Platform, serialized
from testing.pictures import broken_inside, chunk, png

IMAGE = {"name": "photo", "dtype": "bytes", "required": False,
         "image": {"format": "any", "height": 4, "width": 4, "channels": 1, "scale": [-1, 1]}}  # fmt: skip
SCHEMA: dict[str, Any] = {
    "features": [
        IMAGE,
        {"name": "grid", "dtype": "bytes", "tensor": {"dtype": "int16", "shape": [2, 2]}},
        {"name": "scan", "dtype": "bytes", "tensor": {"dtype": "bfloat16", "shape_field": "sizes"}},
        {"name": "sizes", "dtype": "int64", "shape": [2]},
        {"name": "steps", "dtype": "float32", "shape": [None, 2]},
        {"name": "ids", "dtype": "int64", "shape": [None]},
    ],
    "labels": [{"name": "late", "dtype": "int64"}],
}
NETWORK = """
def build_model(schema, parameters):
    photo = keras.Input((4, 4, 1), name="photo", dtype="float32")
    grid = keras.Input((2, 2), name="grid", dtype="int16")
    scan = keras.Input((None, None), name="scan", dtype="bfloat16")
    steps = keras.Input((None, 2), name="steps", dtype="float32")
    mask = keras.Input((None,), name="steps.mask", dtype="bool")
    ids = keras.Input((None,), name="ids", dtype="int64")
    length = keras.Input((), name="ids.length", dtype="int64")
    number = lambda tensor: keras.layers.Lambda(lambda x: tf.cast(x, tf.float32))(tensor)
    parts = [
        keras.layers.Flatten()(keras.layers.Conv2D(2, 3, activation="relu")(photo)),
        keras.layers.Flatten()(number(grid)),
        keras.layers.Lambda(lambda x: tf.reduce_sum(x, axis=[1, 2])[:, tf.newaxis])(number(scan)),
        keras.layers.SimpleRNN(3)(steps, mask=mask),
        keras.layers.Lambda(
            lambda x: tf.reduce_sum(tf.where(tf.sequence_mask(x[1], tf.shape(x[0])[1]),
                                             tf.cast(x[0], tf.float32), 0.0), axis=1, keepdims=True),
            output_shape=(1,),
        )([ids, length]),
    ]
    return keras.Model([photo, grid, scan, steps, mask, ids, length],
                       keras.layers.Dense(1)(keras.layers.Concatenate()(parts)))
"""


def picture(random: np.random.Generator) -> bytes:
    return png(random.integers(0, 255, (6, 5), dtype=np.uint8))


def jpeg(random: np.random.Generator) -> bytes:
    return bytes(tf.io.encode_jpeg(random.integers(0, 255, (6, 5, 1), dtype=np.uint8)).numpy())


def example(random: np.random.Generator, *, steps: int = 2, **changed: Any) -> bytes:
    sizes = [int(random.integers(1, 3)), 2]
    scan = random.normal(size=sizes).astype(tf.bfloat16.as_numpy_dtype)
    values = {
        "photo": picture(random), "grid": random.integers(-9, 9, (2, 2)).astype("<i2").tobytes(),
        "scan": scan.tobytes(), "sizes": sizes, "steps": [float(x) for x in random.normal(size=2 * steps)],
        "ids": [-1, 0][:steps], "late": int(random.integers(0, 2)),
    }  # fmt: skip
    return serialized(values | changed)


def in_steps(serialized_example: bytes) -> bytes:
    """The same event as a SequenceExample with a feature list per sequence."""
    context = Example.FromString(serialized_example).features
    made = SequenceExample()
    for name, size in (("steps", 2), ("ids", 1)):
        values = context.feature.pop(name)
        kind = "float_list" if name == "steps" else "int64_list"
        found = list(getattr(values, kind).value)
        steps = made.feature_lists.feature_list[name]
        for start in range(0, len(found), size):
            getattr(steps.feature.add(), kind).value.extend(found[start : start + size])
    made.context.CopyFrom(context)
    return made.SerializeToString(deterministic=True)


@pytest.mark.covers("rec-raw-tensor", "rec-image", "rec-sequence")
def test_kinds_train_resume_rebuild_and_are_served(tmp_path: Path) -> None:
    random = np.random.default_rng(3)
    first, events = (
        [example(random, steps=step % 4, photo=(picture, jpeg)[step % 2](random)) for step in range(count)]
        for count in (12, 24)
    )
    torn = broken_inside(picture(random))
    events[7] = example(random, photo=torn)
    broken = jpeg(random).replace(b"\xff\xdb", b"\xff\xfe")  # its quantization table is a comment
    events[9] = example(random, photo=broken)
    platform = trained_twice(tmp_path, module(NETWORK), SCHEMA, parts=(first, events))
    draft = platform.registry.drafts[1]
    for size in (len(torn), len(broken)):
        assert f"feature photo: its {size} bytes cannot be decoded as the image" in str(draft.unusable["reasons"])
    assert draft.events_unusable == 2, "the broken images are set aside, and the round goes on"
    _served_alone_and_together(platform, [events[0], events[1], events[3], example(random, ids=[-1, 0, -1])])


@pytest.mark.covers("rec-image")
def test_a_jpeg_that_is_broken_inside_is_refused_at_the_door_where_tensorflow_refuses_it() -> None:
    """And nothing is refused that TensorFlow decodes."""
    draw = np.random.default_rng(4)
    whole = bytes(tf.io.encode_jpeg(draw.integers(0, 255, (48, 48, 1), dtype=np.uint8)).numpy())
    scan = whole.index(b"\xff\xda") + 10
    refused = {True: 0, False: 0}
    for place in draw.integers(scan, len(whole) - 12, 120):
        content = draw.choice([b"\xff" * 8, draw.bytes(8)])
        broken = whole[:place] + content + whole[place + 8 :]
        try:
            tf.io.decode_jpeg(broken, channels=1, dct_method="INTEGER_ACCURATE")
        except tf.errors.InvalidArgumentError:
            refused[fault_of_image(broken, "jpeg") is not None] += 1
        else:
            assert fault_of_image(broken, "jpeg") is None
    assert refused[True] > 20 > 4 * refused[False]
    photo = whole[:scan] + b"\xff\x3a" + whole[scan + 2 :]
    codec = ExampleCodec(Schema.from_mapping({"features": [IMAGE]}))
    assert codec.check(serialized({"photo": whole}))
    with pytest.raises(InvalidInput, match=f"broken inside: ff 3a at byte {scan} begins no part of one"):
        codec.check(serialized({"photo": photo}))


RAMP = np.array([[0, 100], [200, 100]], np.uint8)
BETWEEN = np.array([[1.0, 0.0], [0.75, 0.25], [0.25, 0.75], [0.0, 1.0]])
"""The weights of two pixels in four that lie over them, centres half a pixel inside."""
RESIZED = {"bilinear": BETWEEN @ RAMP @ BETWEEN.T, "nearest": RAMP.repeat(2, axis=0).repeat(2, axis=1)}


@pytest.mark.covers("rec-image")
@pytest.mark.parametrize("method", RESIZED)
def test_an_image_is_decoded_resized_and_scaled_as_numpy_does(method: str) -> None:
    image = {"format": "any", "height": 4, "width": 4, "channels": 1, "resize": method, "scale": [-1, 1]}
    features = Schema.from_mapping({"features": [{"name": "p", "dtype": "bytes", "image": image}]}).features
    found = decoded({"p": tf.constant([png(RAMP)])}, features)["p"].numpy()
    np.testing.assert_allclose(found[0, :, :, 0], RESIZED[method] / 255 * 2 - 1, atol=1e-6)


@pytest.mark.covers("rec-sequence")
def test_steps_of_a_sequence_example_arrive_filled_up_as_tensorflow_parses_them() -> None:
    features = Schema.from_mapping(SCHEMA).features
    draw = np.random.default_rng(5)
    sequences = tf.constant([in_steps(example(draw, steps=count)) for count in (1, 3, 0)])
    spec = {"steps": tf.io.FixedLenSequenceFeature([2], tf.float32)}
    context, lists, lengths = tf.io.parse_sequence_example(
        sequences, {"sizes": tf.io.FixedLenFeature([2], tf.int64)}, spec
    )
    names = ("sizes", "steps", "steps.mask", "steps.length")
    columns = {name: module_inputs.symbolic(Schema.from_mapping(SCHEMA), name) for name in names}
    used = [feature for feature in features if feature.name in ("sizes", "steps")]
    found = module_inputs.given(used, columns, parse_in_graph(sequences, features))
    np.testing.assert_array_equal(found["steps"], lists["steps"])
    np.testing.assert_array_equal(found["sizes"], context["sizes"])
    assert found["steps.length"].numpy().tolist() == lengths["steps"].numpy().tolist() == [1, 3, 0]
    assert found["steps.mask"].numpy().tolist() == [[True, False, False], [True] * 3, [False] * 3]


def _served_alone_and_together(platform: Platform, examples: list[bytes]) -> None:
    """0, 1 and 3 steps, and -1 and 0 among the ids: the same answer alone and beside longer lists."""
    files = platform.registry.versions[1].files
    for place in {Path(file.path).parent for file in files}:
        (platform.directory / "served" / place).mkdir(parents=True, exist_ok=True)
    platform.registry.download(files, platform.directory / "served")
    export = tf.saved_model.load(str(platform.directory / "served" / "saved_model"))
    features = Schema.from_mapping(SCHEMA).features
    together = parse(examples, features).raw
    rows = export.signatures["serving_default"](**together)["logits"].numpy()
    by_examples = export.signatures["serving_examples"]
    assert np.array_equal(by_examples(tf.constant(examples))["logits"].numpy(), rows)
    sequences = [in_steps(one) for one in examples]
    assert np.array_equal(by_examples(tf.constant(sequences))["logits"].numpy(), rows), "as feature lists"
    assert np.array_equal(by_examples(tf.constant([sequences[0], *examples[1:]]))["logits"].numpy(), rows)
    for row, one in enumerate(examples):
        alone = export.signatures["serving_default"](**parse([one], features).raw)["logits"].numpy()
        np.testing.assert_allclose(alone, rows[row : row + 1], rtol=1e-5)
    pixels = [tf.io.decode_image(one, 1).numpy()[:, :, 0] for one in together["photo"].numpy()]
    assert together["photo"].numpy()[1].startswith(b"\xff\xd8"), "the second picture is a JPEG"
    lossless = together | {"photo": tf.constant([png(one) for one in pixels])}
    np.testing.assert_allclose(export.signatures["serving_default"](**lossless)["logits"], rows, atol=1e-6)


@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16", "int16", "int32", "int64", "float16", "bfloat16",
                                   "float32", "float64"])  # fmt: skip
@pytest.mark.covers("rec-raw-tensor")
def test_a_tensor_comes_back_bit_by_bit(dtype: str) -> None:
    values = np.arange(-6, 6).astype(tf.as_dtype(dtype).as_numpy_dtype).reshape(2, 2, 3)
    schema = Schema.from_mapping(
        {"features": [{"name": "t", "dtype": "bytes", "tensor": {"dtype": dtype, "shape": [2, 3]}}]}
    )
    raw = {"t": tf.constant([one.tobytes() for one in values])}
    found = decoded(raw, schema.features)["t"].numpy()
    assert found.dtype == values.dtype
    assert found.tobytes() == values.tobytes()


@pytest.mark.covers("rec-example")
def test_an_empty_feature_of_no_kind_is_absent_to_ingest_as_to_tensorflow() -> None:
    schema = Schema.from_mapping({"features": [
        {"name": "x", "dtype": "float32", "required": False, "default": 2.5},
        {"name": "blob", "dtype": "bytes", "required": False, "default": {"b64": "/wCA"}},
        {"name": "tags", "dtype": "string", "shape": [None], "required": False},
    ]})  # fmt: skip
    example = tf.train.Example()
    for name in ("x", "blob", "tags"):
        example.features.feature[name].SetInParent()
    given = example.SerializeToString()
    checked = ExampleCodec(schema).check(given)
    assert checked != given
    for one in (given, checked):
        raw = parse([one], schema.features).raw
        found = [raw[name].numpy().tolist() for name in ("x", "blob", "tags")]
        assert found == [[2.5], [b"\xff\x00\x80"], [[]]]
    assert ExampleCodec(schema).decode(given) == {"x": [2.5], "blob": [b"\xff\x00\x80"], "tags": []}


@pytest.mark.covers("rec-raw-tensor")
def test_tensors_of_different_shapes_are_filled_up_with_zeros_and_none_are_none() -> None:
    schema = Schema.from_mapping(
        {"features": [{"name": "t", "dtype": "bytes", "tensor": {"dtype": "uint8", "shape_field": "s"}},
                      {"name": "s", "dtype": "int64", "shape": [2]}]}
    )  # fmt: skip
    decode = Decoder(schema)
    raw = {"t": tf.constant([b"ab", b"cde", b"wrong"]), "s": tf.constant([[2, 1], [1, 3], [2, 2]], tf.int64)}
    found, broken = decode(raw)
    assert found["t"].numpy().tolist()[:2] == [[[97, 0, 0], [98, 0, 0]], [[99, 100, 101], [0, 0, 0]]]
    assert list(broken) == [2]
    assert "feature t: its 5 bytes cannot be decoded as the tensor" in broken[2]
    assert decode({name: values[:0] for name, values in raw.items()})[0]["t"].shape == (0, 0, 0)


def test_tensors_that_no_batch_could_be_filled_up_to_are_set_aside() -> None:
    schema = Schema.from_mapping(
        {"features": [{"name": "t", "dtype": "bytes", "tensor": {"dtype": "uint8", "shape_field": "s"}},
                      {"name": "s", "dtype": "int64", "shape": [2]}]}
    )  # fmt: skip
    sizes = [[1, 1], [100_000, 1], [2, 2], [1, 100_000], [99_999, 1]]
    raw = {"t": tf.constant([bytes(a * b) for a, b in sizes]), "s": tf.constant(sizes, tf.int64)}
    with pytest.raises(tf.errors.InvalidArgumentError, match="filled up to the largest, the batch takes more than"):
        decoded(raw, schema.features)
    found, broken = Decoder(schema)(raw)
    assert list(broken) == [3]
    assert "feature t: its size [1, 100000] is far from that of the other events" in broken[3]
    assert found["t"].shape == (5, 100_000, 2)


@pytest.mark.covers("rec-image")
@pytest.mark.parametrize("encode", [tf.io.encode_png, tf.io.encode_jpeg], ids=["png", "jpeg"])
def test_an_image_is_decoded_resized_and_scaled_and_none_is_black(encode: Any) -> None:
    pixels: NDArray[np.uint8] = np.full((10, 6, 3), (255, 0, 128), np.uint8)
    kind = {"height": 4, "width": 2, "scale": [-1, 1], "resize": "area"}
    schema = Schema.from_mapping({"features": [{"name": "i", "dtype": "bytes", "required": False, "image": kind}]})
    images, broken = Decoder(schema)({"i": tf.stack([encode(pixels), b""])})
    assert not broken
    assert images["i"].shape == (2, 4, 2, 3)
    np.testing.assert_allclose(images["i"][0, 1, 1], [1.0, -1.0, 0.0], atol=0.03)
    assert np.all(images["i"][1].numpy() == -1.0)


RED_BLUE = {
    "gif": bytes.fromhex("47494638376102000100810000ff00000000ff0000000000002c00000000020001000008050001040808003b"),
    "bmp": b"BM" + struct.pack("<IHHI", 62, 0, 0, 54)
    + struct.pack("<IiiHHIIiiII", 40, 2, 1, 1, 24, 0, 0, 0, 0, 0, 0) + bytes([0, 0, 255, 255, 0, 0, 0, 0]),
}  # fmt: skip
"""A red pixel beside a blue one."""


@pytest.mark.parametrize("kind", ["gif", "bmp"])
def test_an_image_whose_decoder_knows_colours_only_becomes_gray(kind: str) -> None:
    for expected in (kind, "any"):
        feature = Feature("photo", "bytes", image=ImageKind(expected, 1, 2, 1, "nearest", (0.0, 255.0)))
        assert feature.fault_of_bytes(RED_BLUE[kind]) is None
        found = decoded({"photo": tf.constant([RED_BLUE[kind]])}, [feature])["photo"].numpy()
        assert found.ravel().tolist() == [76.0, 29.0]  # ITU-R BT.601


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_a_png_of_few_bits_without_alpha_is_opaque(bits: int) -> None:
    header = struct.pack(">IIBBBBB", 2, 1, bits, 0, 0, 0, 0)
    black_white = (((1 << bits) - 1) << (16 - 2 * bits)).to_bytes(2)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(b"\x00" + black_white)), (b"IEND", b""))
    image = b"\x89PNG\r\n\x1a\n" + b"".join(map(chunk, parts))
    feature = Feature("icon", "bytes", image=ImageKind("png", 1, 2, 4, "nearest", (0.0, 255.0)))
    found = decoded({"icon": tf.constant([image])}, [feature])["icon"].numpy()
    assert found.tolist() == [[[[0, 0, 0, 255], [255, 255, 255, 255]]]]
