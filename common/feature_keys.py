"""The keys of one feature in a stream's schema: what each must be, and how it is read. Each reader raises InvalidInput
with the fault in words."""

import base64
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from common.errors import InvalidInput
from common.half_pairs import is_text
from common.kinds import MAX_RANK, MAX_VALUES, ImageKind, TensorKind

Dtype = Literal["float32", "int64", "string", "bytes"]
DTYPES: tuple[Dtype, ...] = ("float32", "int64", "string", "bytes")
Scalar = float | int | str | bytes
MAX_ALIAS_CHARACTERS = 256
NAME_PATTERN = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,127}")
FEATURE_KEYS: Mapping[str, str] = {
    "name": "a name: a letter or _, then up to 127 letters, digits, _ . -; required",
    "dtype": "float32, int64, string or bytes; required",
    "shape": "a list of sizes; the first may be null for any length, as in [null] or [null, 3], and [null, null] is a "
    "list of lists; default: a scalar",
    "required": "true or false; default true",
    "default": "a value of the dtype (of bytes: {b64: ...}, or a text as UTF-8); only with required: false, and needed "
    "there unless the length is free (then the empty list), it is a tensor or an image (then zeros), or a label (then "
    "it may be missing: the event teaches other heads only)",
    "min": "a number; default: no bound",
    "max": "a number; default: no bound",
    "vocabulary": "a list of different strings; strings only; default: any",
    "weights_of": "the name of the feature of shape [null] whose values these weigh: an event with more or fewer of "
    "them is refused; float32 or int64 of shape [null] only",
    "aliases": "a list of other names, of any characters, under which every door takes the value; default: none",
    "yes_no": "true or false: every door takes yes, no, y, n, true, false, t and f, in capitals too, and JSON's true "
    "and false for 1 and 0; float32 and int64 only; default false",
    "tensor": "what raw bytes hold: dtype and shape or shape_field; bytes only; default: any bytes",
    "image": "how an encoded image is decoded: height, width, format, channels, resize, scale; bytes only",
}
"""Every key, with what it must be; the reference is made from them (docs/generate)."""


def check_name(kind: str, name: object) -> str:
    """The name itself. Raises InvalidInput: it is not a name (a letter or _, then letters, digits, _ . -, 128 at
    most)."""
    if not isinstance(name, str) or not NAME_PATTERN.fullmatch(name):
        raise InvalidInput(
            f"{kind} name {name!r} is not a name: a letter or _, then up to 127 letters, digits, _ . -"
            f"{_as_name(kind, name)}"
        )
    return name


def _as_name(kind: str, text: object) -> str:
    """A possible name: no slash, no space. A feature's is that of a column."""
    if not isinstance(text, str):
        return ""
    close = re.sub(r"[^A-Za-z0-9_.-]+", "_", text).strip("_")[:128]
    close = close if close[:1].isalpha() else f"_{close}"
    if not text or not NAME_PATTERN.fullmatch(close):
        return ""
    return f"; call it {close}" + (", and rename the column where the events are made" if kind == "feature" else "")


def kinds(name: str, dtype: Dtype, mapping: Mapping[str, Any]) -> tuple[TensorKind | None, ImageKind | None]:
    given = [key for key in ("tensor", "image") if mapping.get(key) is not None]
    if not given:
        return None, None
    if len(given) == 2:
        raise InvalidInput(f"feature {name} is either a tensor or an image")
    if dtype != "bytes" or mapping.get("shape"):
        raise InvalidInput(f"feature {name}: {given[0]} needs dtype: bytes and no shape")
    if given == ["tensor"]:
        return TensorKind.from_mapping(name, mapping["tensor"]), None
    return None, ImageKind.from_mapping(name, mapping["image"])


def items(part: str, value: object) -> Iterable[Any]:
    if not isinstance(value, list | tuple):
        raise InvalidInput(f"{part} must be a list, got {value!r}")
    return value


def shape(name: str, value: object) -> tuple[int | None, ...]:
    if not isinstance(value, list | tuple):
        raise InvalidInput(f"feature {name}: shape must be a list of sizes, got {value!r}")
    shape = tuple(value)
    sizes = () if shape == (None, None) else shape[1:] if shape[:1] == (None,) else shape
    if not all(isinstance(size, int) and not isinstance(size, bool) and size > 0 for size in sizes):
        raise InvalidInput(
            f"feature {name}: shape {str(list(shape))[:100]} must be positive sizes; the first may be null for any "
            f"length, and [null, null] is a list of lists"
        )
    if len(shape) > MAX_RANK or math.prod(sizes) > MAX_VALUES:
        raise InvalidInput(
            f"feature {name}: shape {str(list(shape))[:100]} has {len(shape)} sizes; expected at most {MAX_RANK}, and "
            f"{MAX_VALUES} values in all"
        )
    return shape


def aliases(name: str, value: object) -> tuple[str, ...]:
    aliases = tuple(items(f"feature {name}: aliases", value))
    for alias in aliases:
        if not is_text(alias) or not 0 < len(alias) <= MAX_ALIAS_CHARACTERS:
            raise InvalidInput(
                f"feature {name}: alias {str(alias)[:100]!r} must be a text of 1 to {MAX_ALIAS_CHARACTERS} characters"
            )
    return aliases


def yes_no(name: str, dtype: Dtype, value: object) -> bool:
    if not isinstance(value, bool):
        raise InvalidInput(f"feature {name}: yes_no must be true or false, got {value!r}")
    if value and dtype not in ("float32", "int64"):
        raise InvalidInput(f"feature {name}: yes_no is for float32 and int64, {dtype} takes the words as they are")
    return value


def weights_of(name: str, dtype: Dtype, shape: tuple[int | None, ...], value: object) -> str | None:
    if value is None:
        return None
    if dtype not in ("float32", "int64") or shape != (None,):
        raise InvalidInput(f"feature {name}: weights_of needs float32 or int64 of shape [null]")
    return check_name(f"feature {name}: weights_of", value)


def bound(name: str, part: str, dtype: Dtype, value: object) -> float | None:
    if value is None:
        return None
    if dtype in ("string", "bytes"):
        raise InvalidInput(f"feature {name}: {part} does not apply to {'strings' if dtype == 'string' else 'bytes'}")
    if isinstance(value, bool) or not isinstance(value, int | float) or not _is_finite(value):
        raise InvalidInput(f"feature {name}: {part} must be a number, got {value!r}")
    return value


def _is_finite(value: float) -> bool:
    """Also for whole numbers that no float can hold."""
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def vocabulary(name: str, dtype: Dtype, value: object) -> tuple[str, ...]:
    words = tuple(items(f"feature {name}: vocabulary", value))
    if words and dtype != "string":
        raise InvalidInput(f"feature {name}: vocabulary applies to strings only")
    if not all(is_text(word) for word in words) or len(set(words)) != len(words):
        raise InvalidInput(f"feature {name}: vocabulary must be different strings")
    return words


def value(name: str, part: str, dtype: Dtype, value: object) -> Scalar | None:
    if value is None:
        return None
    if dtype in ("string", "bytes") and isinstance(value, Mapping):
        return _from_base64(name, part, value)
    if dtype in ("string", "bytes") and isinstance(value, str) and is_text(value):
        return value
    if dtype == "int64" and isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63:
        return value
    if dtype == "float32" and isinstance(value, int | float) and not isinstance(value, bool) and _is_finite(value):
        return float(value)
    raise InvalidInput(f"feature {name}: {part} {value!r} is not a {dtype}")


def _from_base64(name: str, part: str, value: Mapping[str, Any]) -> bytes:
    try:
        if value.keys() != {"b64"}:
            raise ValueError
        return base64.b64decode(value["b64"], validate=True)
    except (TypeError, ValueError):
        raise InvalidInput(f"feature {name}: {part} {value!r} is not {{b64: ...}} with base64 (RFC 4648)") from None
