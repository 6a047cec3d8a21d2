"""The words of a label beside the numbers of its classes: `class` beside `class_id`, or beside the probability of the
second of two. They are added to the engine's answer, since engines other than TensorFlow carry no strings.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from services.serving.wire.replica_state import Signature, TensorSpec

_OUTPUT = "class"
_EVEN = 0.5


class ClassWords:
    """Of a version: {signature: {output of numbers: the words of 0, 1, ...}}. Immutable."""

    def __init__(self, words: Mapping[str, Mapping[str, Sequence[str]]] | None = None) -> None:
        self._added = {
            signature: {
                _name_beside(of): (of, np.array([word.encode() for word in known], object))
                for of, known in outputs.items()
            }
            for signature, outputs in (words or {}).items()
        }

    def client_signatures(self, signatures: Mapping[str, Signature]) -> dict[str, Signature]:
        """The signatures as clients see them."""
        return {name: self._with_words(name, signature) for name, signature in signatures.items()}

    def _with_words(self, name: str, signature: Signature) -> Signature:
        words = {
            added: TensorSpec("DT_STRING", (signature.outputs[of].shape or (-1,))[:1])
            for added, (of, _) in self._added.get(name, {}).items()
            if of in signature.outputs and added not in signature.outputs
        }
        return dataclasses.replace(signature, outputs={**signature.outputs, **words}) if words else signature

    def model_outputs(self, signature: str, output_filter: tuple[str, ...]) -> tuple[str, ...]:
        """The outputs to compute; empty means all."""
        added = self._added.get(signature)
        if not added or not output_filter:
            return output_filter
        return tuple(dict.fromkeys(added[name][0] if name in added else name for name in output_filter))

    def with_words(
        self, signature: str, outputs: dict[str, np.ndarray], output_filter: tuple[str, ...]
    ) -> dict[str, np.ndarray]:
        """The model's answer with the words, and without the outputs that only the words need."""
        added = self._added.get(signature)
        if not added:
            return outputs
        words = {
            name: _words_of(outputs[of], known)
            for name, (of, known) in added.items()
            if of in outputs and name not in outputs
        }
        found = {**outputs, **words}
        return {name: array for name, array in found.items() if not output_filter or name in output_filter}


def _name_beside(output: str) -> str:
    """Of several heads each has its name before its outputs'."""
    head, slash, _ = output.rpartition("/")
    return f"{head}{slash}{_OUTPUT}"


def _words_of(numbers: np.ndarray, words: np.ndarray) -> np.ndarray:
    return words.take(numbers if numbers.dtype.kind == "i" else numbers > _EVEN, mode="clip")
