"""What a round keeps for TensorBoard beside its curves (section `training`, key `summaries`).

    summaries: {histograms: 4, worst: 8, audio: {pcm: 4000}, projector: 20000}

Nothing of it changes a weight, so it is no part of a round's configuration.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from common.definition.fields import Allowed, Fields
from common.errors import InvalidInput
from common.schema import Schema

_MOST_SHOWN = 64
_MOST_SAMPLES_PER_SECOND = 192_000
_MOST_ROWS = 100_000
_MOST_TAP_BYTES = 64 << 20
_DEBUGGER_BYTES, _MOST_DEBUGGER_BYTES = 16 << 20, 256 << 20


@dataclass(frozen=True)
class Summaries:
    """Attributes:
    histograms: every this many blocks, of weights, gradients and what each layer gives; 0: none.
    weight_images: each weight of two dimensions or more as an image, when histograms are taken.
    worst: held-out examples with the largest losses, as texts, and as images where a feature is an image; 0: none.
    samples: the first held-out examples of the round, shown in the same way; 0: none.
    audio: features that are sounds, with their samples per second: of examples that are shown they can be heard.
    statistics: counts, quantiles, distinct values and frequent words of every field of the trained examples.
    graph: what is served, as TensorBoard's tab of graphs shows it.
    projector: rows of each embedding table, the first rows, with what each is in words; 0: none.
    taps: tensors to print, patterns of weights/PATH, gradients/PATH and activations/LAYER; after every `tap_blocks`
        blocks, into a file of at most `tap_bytes` beside the log.
    debugger: operations of a step with their values' health, as TensorBoard's debugger reads them, up to
        `debugger_bytes`.
    compiled: what XLA made of a step (training.jit_compile), as a text.
    """

    histograms: Annotated[int, Allowed(minimum=0, maximum=1_000_000)] = 0
    weight_images: bool = False
    worst: Annotated[int, Allowed(minimum=0, maximum=_MOST_SHOWN)] = 0
    samples: Annotated[int, Allowed(minimum=0, maximum=_MOST_SHOWN)] = 0
    audio: Mapping[str, int] = field(default_factory=dict)
    statistics: bool = True
    graph: bool = True
    projector: Annotated[int, Allowed(minimum=0, maximum=_MOST_ROWS)] = 1_000
    taps: Annotated[tuple[str, ...], Allowed(may_be_empty=True)] = ()
    tap_blocks: Annotated[int, Allowed(maximum=1_000_000)] = 1
    tap_bytes: Annotated[int, Allowed(minimum=1024, maximum=_MOST_TAP_BYTES)] = 1 << 20
    debugger: bool = False
    debugger_bytes: Annotated[int, Allowed(minimum=1 << 20, maximum=_MOST_DEBUGGER_BYTES)] = _DEBUGGER_BYTES
    compiled: bool = False

    def check_against_schema(self, schema: Schema) -> None:
        """Raises InvalidInput: a sound that the stream does not have, or that is no list of numbers."""
        for name in self.audio:
            feature = schema.own_feature(name, "summaries: audio")
            kind = feature.tensor
            shape = feature.shape if kind is None else kind.shape
            if len(shape or ()) != 1 or (feature.dtype in ("string", "bytes") and kind is None):
                raise InvalidInput(f"summaries: audio {name} must be a list of numbers, one per sample")


def parse_summaries(section: object) -> Summaries:
    """Raises InvalidInput: which key, what was expected."""
    fields = Fields("summaries", section)
    summaries = fields.made(Summaries, audio=_audio(fields.take("audio", {})))
    fields.finish()
    if not summaries.taps and (summaries.tap_blocks, summaries.tap_bytes) != (1, 1 << 20):
        raise InvalidInput("summaries: tap_blocks and tap_bytes are of taps; say which tensors")
    if not summaries.debugger and summaries.debugger_bytes != _DEBUGGER_BYTES:
        raise InvalidInput("summaries: debugger_bytes is of the debugger's dump; say debugger: true")
    if summaries.audio and not summaries.worst + summaries.samples:
        raise InvalidInput("summaries: audio is of the examples that are shown; say how many (worst, samples)")
    if summaries.weight_images and not summaries.histograms:
        raise InvalidInput("summaries: weight_images come with histograms; say after how many blocks")
    return summaries


def _audio(section: object) -> dict[str, int]:
    if not isinstance(section, Mapping):
        raise InvalidInput(f"summaries: audio must map features to samples per second, got {section!r}")
    rates = Fields("summaries.audio", section)
    return {str(name): rates.integer(str(name), maximum=_MOST_SAMPLES_PER_SECOND) for name in section}
