"""What the bytes of a feature are: a tensor's values, or an encoded image. Checked at the doors, decoded in the model.

    - {name: pixels, dtype: bytes, tensor: {dtype: uint8, shape: [28, 28]}}
    - {name: scan, dtype: bytes, tensor: {dtype: float16, shape_field: scan_shape}}   # the event says its shape itself
    - {name: photo, dtype: bytes, image: {format: jpeg, height: 96, width: 96, channels: 3}}

A tensor's values are little-endian and in C order. An image becomes float32 [height, width, channels].
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from common.counted import counted
from common.errors import InvalidInput
from common.images import FORMATS, fault_of_image, format_of_image, jpeg_components
from common.suggestions import did_you_mean, refuse_unknown

ITEM_BYTES: Mapping[str, int] = {
    "uint8": 1, "int8": 1, "uint16": 2, "int16": 2, "int32": 4, "int64": 8,
    "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8,
}  # fmt: skip
"""What tf.io.decode_raw reads, with the bytes of one value."""
MAX_RANK, MAX_VALUES = 16, 1 << 24
"""Of one feature of one event: more would not fit into a request of 64 MiB."""
_EXPONENTS: Mapping[str, tuple[str, int]] = {
    "float16": ("<u2", 0x7C00),
    "bfloat16": ("<u2", 0x7F80),
    "float32": ("<u4", 0x7F800000),
    "float64": ("<u8", 0x7FF0000000000000),
}
"""By float type: its bits as a number, and those that are all set in NaN and the infinities (IEEE 754)."""
RESIZE_METHODS = ("bilinear", "nearest", "bicubic", "area", "lanczos3", "lanczos5", "gaussian", "mitchellcubic")
"""tf.image.ResizeMethod."""
TENSOR_KEYS: Mapping[str, str] = {
    "dtype": f"{', '.join(ITEM_BYTES)}; required",
    "shape": "a list of sizes, [] for one value; this or shape_field",
    "shape_field": "the name of an int64 feature of shape [rank] that holds the sizes of each event; this or shape",
}
IMAGE_KEYS: Mapping[str, str] = {
    "format": f"{', '.join(FORMATS)} or any; default any",
    "height": "rows of pixels after resizing; required",
    "width": "columns of pixels after resizing; required",
    "channels": "1 (gray), 3 (red, green, blue) or, for png, 4 (with alpha); default 3",
    "resize": f"{', '.join(RESIZE_METHODS)}; default bilinear",
    "scale": "[low, high], what 0 and 255 become; default [0, 1]",
}
_LARGEST_SIDE = 16_384


@dataclass(frozen=True)
class TensorKind:
    """Attributes:
    shape: of every event; None where `shape_field` names the feature that says it.
    """

    dtype: str
    shape: tuple[int, ...] | None
    shape_field: str | None = None

    @property
    def byte_count(self) -> int | None:
        """Of a value; None where each event has its own."""
        return None if self.shape is None else math.prod(self.shape) * ITEM_BYTES[self.dtype]

    @property
    def takes_any_bytes(self) -> bool:
        """Whether only their number can be wrong: integers have no NaN."""
        return self.dtype not in _EXPONENTS

    def fault_of(self, value: bytes, shape: Sequence[int] | None = None) -> str | None:
        """What is wrong, as the rest of a sentence; None for nothing. `shape`: what the shape field says."""
        sizes = tuple(self.shape if self.shape is not None else shape or ())
        if any(size < 0 for size in sizes):
            return f"has the shape {list(sizes)}, expected sizes of at least 0"
        if math.prod(max(size, 1) for size in sizes) > MAX_VALUES:
            return f"has the shape {list(sizes)}, expected at most {MAX_VALUES} values, sizes of 0 counted as 1"
        expected = math.prod(sizes) * ITEM_BYTES[self.dtype]
        if len(value) != expected:
            return f"holds {len(value)} bytes, expected {expected}: {self.dtype} {list(sizes)}"
        if self.dtype in _EXPONENTS:
            import numpy as np  # here: the client and the CLI read schemas and start without it

            bits, exponent = _EXPONENTS[self.dtype]
            if ((np.frombuffer(value, bits) & exponent) == exponent).any():
                return "holds NaN or an infinity, expected finite numbers"
        return None

    def to_mapping(self) -> dict[str, Any]:
        mapping: dict[str, Any] = {"dtype": self.dtype}
        return mapping | ({"shape_field": self.shape_field} if self.shape is None else {"shape": list(self.shape)})

    @classmethod
    def from_mapping(cls, name: str, mapping: object) -> Self:
        """Raises InvalidInput with the fault in words."""
        given = _mapping(name, "tensor", mapping, TENSOR_KEYS)
        dtype, shape, field = given.get("dtype"), given.get("shape"), given.get("shape_field")
        if not isinstance(dtype, str) or dtype not in ITEM_BYTES:
            raise InvalidInput(
                f"feature {name}: tensor's dtype {dtype!r} is none of {', '.join(ITEM_BYTES)}"
                f"{did_you_mean([str(dtype)], ITEM_BYTES)}"
            )
        if (shape is None) == (field is None):
            raise InvalidInput(f"feature {name}: a tensor has either shape or shape_field")
        if field is not None:
            if not isinstance(field, str):
                raise InvalidInput(f"feature {name}: shape_field must be the name of a feature, got {field!r}")
            return cls(dtype, None, field)
        if not isinstance(shape, list | tuple) or not all(_is_size(size) for size in shape):
            raise InvalidInput(f"feature {name}: tensor's shape must be a list of positive sizes, got {shape!r}")
        if len(shape) > MAX_RANK or math.prod(shape) > MAX_VALUES:
            raise InvalidInput(
                f"feature {name}: tensor's shape {str(list(shape))[:100]} has {len(shape)} sizes; expected at most "
                f"{MAX_RANK}, and {MAX_VALUES} values in all"
            )
        return cls(dtype, tuple(shape))


@dataclass(frozen=True)
class ImageKind:
    """Attributes:
    format: of the encoded bytes; "any" for each that images.FORMATS knows.
    resize: the name of a tf.image.ResizeMethod.
    scale: what 0 and 255 of a channel become.
    """

    format: str
    height: int
    width: int
    channels: int
    resize: str = "bilinear"
    scale: tuple[float, float] = (0.0, 1.0)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Of the decoded image."""
        return self.height, self.width, self.channels

    def fault_of(self, value: bytes) -> str | None:
        """What can be seen without decoding, as the rest of a sentence; None for nothing."""
        fault = fault_of_image(value, self.format)
        if fault is None and self.channels == 1 and format_of_image(value) == "jpeg" and jpeg_components(value) == 4:
            return "is a jpeg image of four inks (CMYK), expected gray or colours for channels: 1"
        return fault

    def to_mapping(self) -> dict[str, Any]:
        return {
            "format": self.format, "height": self.height, "width": self.width, "channels": self.channels,
            "resize": self.resize, "scale": list(self.scale),
        }  # fmt: skip

    @classmethod
    def from_mapping(cls, name: str, mapping: object) -> Self:
        """Raises InvalidInput with the fault in words."""
        given = _mapping(name, "image", mapping, IMAGE_KEYS)
        image_format, resize = given.get("format", "any"), given.get("resize", "bilinear")
        for key, value, known in (("format", image_format, (*FORMATS, "any")), ("resize", resize, RESIZE_METHODS)):
            if value not in known:
                raise InvalidInput(
                    f"feature {name}: image's {key} {value!r} is none of {', '.join(known)}"
                    f"{did_you_mean([str(value)], known)}"
                )
        height, width = given.get("height"), given.get("width")
        for key, value in (("height", height), ("width", width)):
            if not _is_size(value) or value > _LARGEST_SIDE:
                raise InvalidInput(
                    f"feature {name}: image's {key} must be a whole number from 1 to {_LARGEST_SIDE}, got {value!r}"
                )
        channels = given.get("channels", 3)
        allowed = (1, 3, 4) if image_format == "png" else (1, 3)
        if not _is_size(channels) or channels not in allowed:
            words = " or ".join(map(str, allowed))
            raise InvalidInput(f"feature {name}: image's channels must be {words} for {image_format}, got {channels!r}")
        if height * width * channels > MAX_VALUES:
            raise InvalidInput(
                f"feature {name}: an image has at most {MAX_VALUES} values, not {height * width * channels}"
            )
        return cls(image_format, height, width, channels, resize, _scale(name, given.get("scale", (0.0, 1.0))))


def too_wide(rows: int, longest: int) -> str:
    """The fault of a list of lists that a model could not see as a table."""
    return f"has {counted(rows, 'row')}, the longest of {longest} values, expected a product of at most {MAX_VALUES}"


def _mapping(name: str, part: str, value: object, known: Mapping[str, str]) -> Any:
    if not isinstance(value, Mapping):
        raise InvalidInput(f"feature {name}: {part} must be a mapping with {', '.join(known)}, got {value!r}")
    refuse_unknown(f"feature {name}: {part}", value, known)
    return value


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _scale(name: str, value: object) -> tuple[float, float]:
    numbers = list(value) if isinstance(value, list | tuple) else []
    are_numbers = all(isinstance(number, int | float) and not isinstance(number, bool) for number in numbers)
    if (
        len(numbers) != 2
        or not are_numbers
        or not all(abs(number) <= 1e30 for number in numbers)
        or numbers[0] >= numbers[1]
    ):
        raise InvalidInput(f"feature {name}: image's scale must be [low, high], low below high, got {value!r}")
    return float(numbers[0]), float(numbers[1])
