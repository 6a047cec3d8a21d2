"""The signature contract: what a version promises its callers, and what another version changes about it.

A caller is kept whole by: every signature, input and output of before with its type and shape. New signatures and
outputs break no client. A new input does, unless a request may leave it out.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from common.saved_model.graph import Signature, Tensor

Signatures = Mapping[str, Signature]


def to_mapping(signatures: Signatures) -> dict[str, Any]:
    """As JSON carries it."""
    return {
        name: {"method": signature.method, "inputs": _listed(signature.inputs), "outputs": _listed(signature.outputs)}
        for name, signature in signatures.items()
    }


def from_mapping(mapping: Mapping[str, Any]) -> dict[str, Signature]:
    """The inverse of to_mapping."""
    return {
        name: Signature(signature["method"], _tensors(signature["inputs"]), _tensors(signature["outputs"]))
        for name, signature in mapping.items()
    }


def tensors(signature: Mapping[str, Any], side: str) -> dict[str, Tensor]:
    """The `inputs` or `outputs` of one signature of to_mapping's."""
    return _tensors(signature[side])


def changes(before: Signatures, after: Signatures, *, may_be_left_out: Mapping[str, Collection[str]]) -> list[str]:
    """A sentence for each promise of `before` that `after` does not keep.

    Args:
        may_be_left_out: {signature: inputs of `after` that a request need not have}.
    """
    found = []
    for name, old in before.items():
        new = after.get(name)
        if new is None:
            found.append(f"signature {name} is gone")
            continue
        left_out = may_be_left_out.get(name, ())
        if old.method != new.method:
            found.append(f"signature {name} is for {new.method}, it was for {old.method}")
        found += [f"signature {name}: {change}" for change in _inputs_changed(old.inputs, new.inputs, left_out)]
        found += [f"signature {name}: {change}" for change in _changed("output", old.outputs, new.outputs)]
    return found


def _inputs_changed(
    old: Mapping[str, Tensor], new: Mapping[str, Tensor], may_be_left_out: Collection[str]
) -> Iterator[str]:
    yield from _changed("input", old, new)
    for name in new:
        if name not in old and name not in may_be_left_out:
            yield f"input {name} ({new[name]}) is new, and a request cannot leave it out"


def _changed(kind: str, old: Mapping[str, Tensor], new: Mapping[str, Tensor]) -> Iterator[str]:
    for name, tensor in old.items():
        if name not in new:
            yield f"{kind} {name} ({tensor}) is gone"
        elif new[name].dtype != tensor.dtype or not _takes(tensor, new[name], is_input=kind == "input"):
            yield f"{kind} {name} is {new[name]}, it was {tensor}"


def _takes(old: Tensor, new: Tensor, *, is_input: bool) -> bool:
    """Whether callers of the old shape get along with the new shape: an input may take more than before."""
    if old.shape == new.shape:
        return True
    if not is_input or new.shape is None or old.shape is None:
        return is_input and new.shape is None
    return len(old.shape) == len(new.shape) and all(b in (a, -1) for a, b in zip(old.shape, new.shape, strict=True))


def _listed(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    return {
        name: {"dtype": tensor.dtype, "shape": None if tensor.shape is None else list(tensor.shape)}
        for name, tensor in tensors.items()
    }


def _tensors(mapping: Mapping[str, Any]) -> dict[str, Tensor]:
    return {
        name: Tensor(tensor["dtype"], None if tensor["shape"] is None else tuple(tensor["shape"]))
        for name, tensor in mapping.items()
    }
