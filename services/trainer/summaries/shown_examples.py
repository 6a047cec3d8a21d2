"""Held-out examples: the first ones, and those on which a version errs most; what they were, what it said, and how they
look."""

import heapq
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray
from tensorboard.compat.proto.summary_pb2 import Summary

from services.trainer.families.heads import BuiltHead
from services.trainer.families.port import Outputs, TrainingSet
from services.trainer.summaries.drawings import as_bytes
from services.trainer.summaries.events import audio, image, text

_LONGEST = 200
_MOST_PIXELS = 1024 * 1024
_CHANNELS = (1, 3, 4)
_NO_SOUNDS: Mapping[str, int] = {}


@dataclass(frozen=True)
class _Shown:
    loss: float
    place: int
    facts: dict[str, str]
    media: dict[str, NDArray[np.generic]]


class ShownExamples:
    """Keeps `worst` and `samples` of them, however many come. `sounds`: features by samples per second."""

    def __init__(
        self, heads: tuple[BuiltHead, ...], *, worst: int, samples: int = 0, sounds: Mapping[str, int] = _NO_SOUNDS
    ) -> None:
        self._heads, self._worst, self._samples, self._sounds = heads, worst, samples, sounds
        self._kept: list[tuple[float, int, _Shown]] = []
        self._first: list[_Shown] = []
        self._seen = 0

    def add(
        self, examples: TrainingSet, raw: Mapping[str, tf.Tensor], outputs: Outputs, *, without: Mapping[int, str]
    ) -> None:
        """`outputs`: of all the examples; those in `without` have none."""
        if not self._worst + self._samples or not examples.count:
            return

        def shown(row: int) -> _Shown:
            facts, media = self._facts(examples, raw, outputs, row), self._media(raw, row)
            return _Shown(float(losses[row]), self._seen + row, facts, media)

        losses = np.zeros(examples.count)
        for head in self._heads:
            found = head.losses_of(examples.labels[head.name], tf.constant(outputs[head.name])).numpy()
            losses += head.head.weight * found * examples.weights[head.name].numpy()
        losses[[*without]] = -np.inf
        losses[~np.isfinite(losses)] = -np.inf
        answered = np.flatnonzero(np.isfinite(losses))
        self._first += [shown(row) for row in answered[: self._samples - len(self._first)].tolist()]
        for row in answered[np.argsort(-losses[answered], kind="stable")[: self._worst]].tolist():
            loss, is_full = float(losses[row]), len(self._kept) == self._worst
            if not is_full or loss > self._kept[0][0]:
                change = heapq.heapreplace if is_full else heapq.heappush
                change(self._kept, (loss, -self._seen - row, shown(row)))
        self._seen += examples.count

    def _facts(self, examples: TrainingSet, raw: Mapping[str, tf.Tensor], outputs: Outputs, row: int) -> dict[str, str]:
        of_heads = {
            f"head {head.name}": f"label {_shown(examples.labels[head.name][row].numpy())}, said "
            + ", ".join(
                f"{name} {_shown(value.numpy()[0])}"
                for name, value in head.served(tf.constant(outputs[head.name][row : row + 1])).items()
            )
            for head in self._heads
        }
        return of_heads | {name: _shown(raw[name][row].numpy()) for name in raw.keys() - self._media(raw, row).keys()}

    def _media(self, raw: Mapping[str, tf.Tensor], row: int) -> dict[str, NDArray[np.generic]]:
        shown = (name for name, values in raw.items() if name in self._sounds or _is_image(values))
        return {name: raw[name][row].numpy() for name in shown}

    def summaries(self) -> list[Summary]:
        """Worst first: worst/0 is a table, worst/0/FEATURE an image or sound; sample/0 in the log's order."""
        worst = [shown for _, _, shown in sorted(self._kept, reverse=True, key=lambda kept: kept[:2])]
        return [
            summary
            for kind, examples in (("worst", worst), ("sample", self._first))
            for place, shown in enumerate(examples)
            for summary in self._summaries_of(f"{kind}/{place}", shown)
        ]

    def _summaries_of(self, tag: str, shown: _Shown) -> Iterator[Summary]:
        rows = [("loss", f"{shown.loss:.6g}"), *shown.facts.items()]
        yield text(
            tag, "\n".join(["| what | value |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)])
        )
        for name, pixels in shown.media.items():
            if rate := self._sounds.get(name):
                yield audio(f"{tag}/{name}", _as_samples(pixels), samples_per_second=rate)
                continue
            png = tf.io.encode_png(as_bytes(pixels)).numpy()
            height, width = pixels.shape[:2]
            yield image(f"{tag}/{name}", png, height=height, width=width)


def _is_image(values: tf.Tensor) -> bool:
    shape = values.shape
    return shape.rank == 4 and shape[3] in _CHANNELS and 1 < shape[1] * shape[2] <= _MOST_PIXELS


def _as_samples(values: NDArray[np.generic]) -> NDArray[np.int16]:
    """As they are where they are such already; else the largest is as loud as can be."""
    if values.dtype == np.int16:
        return values.astype(np.int16)
    flat = np.nan_to_num(values.astype(np.float64).ravel(), posinf=0.0, neginf=0.0)
    peak = float(np.abs(flat).max(initial=0.0))
    return np.asarray(np.round(flat * (32_767.0 / peak if peak else 0.0)), np.int16)


def _shown(value: object) -> str:
    if isinstance(value, np.ndarray):
        content = ", ".join(_shown(item) for item in value.ravel()[:20].tolist())
        return f"[{content}{', ...' if value.size > 20 else ''}]"
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    shown = f"{value:.6g}" if isinstance(value, float | np.floating) else str(value)
    return shown[:_LONGEST].replace("|", "\\|").replace("\n", " ")
