"""How raw features become what a network sees, as a model's definition says it (section `features`).

    route:         {type: crossed, of: [origin, dest], bins: 1000}
    route_vector:  {type: embedding, of: route, dimension: 8}

docs/guide/model.md has an example of each type. Categorical kinds (bucketized, vocabulary, identity, hashed, text,
crossed) give ids; embedding and indicator make numbers of them. `of` names a raw feature, for crossed, embedding and
indicator first a feature of this section. In a feature of any length (shape [null]) the empty word and negative ids
mean "nothing there".
"""

from dataclasses import dataclass, field, replace

from common.definition.forgetting import Forgetting
from common.definition.steps import Step, columns_after
from common.definition.text import Cut


@dataclass(frozen=True)
class Numeric:
    """float32 columns, one per value of the raw feature.

    Attributes:
        normalize: none, zscore ((x - mean) / standard deviation) or minmax ((x - min) / (max - min)); the statistics
            are fitted on trained examples, per column, without values that are implausibly far out. A constant column
            becomes 0, and what lies 1,000 times outside is cut off there.
        update: later rounds add their examples to the statistics (the default), or they stay those of the first.
        clip: (low, high): values outside are cut off there, first of all.
        log: sign(x) * log(1 + |x|) in place of x, before it is normalized.
        steps: what happens after that to the columns of an example, before they are normalized (steps.py).
    """

    name: str
    of: str
    normalize: str
    update: bool
    clip: tuple[float, float] | None = None
    log: bool = False
    steps: tuple[Step, ...] = ()

    @property
    def shaping(self) -> tuple[str, ...]:
        """What is done to a value before statistics see it, in words; empty for nothing."""
        clip = () if self.clip is None else (f"clipped to {self.clip[0]!r}..{self.clip[1]!r}",)
        return (*clip, *(("log",) if self.log else ()), *map(str, self.steps))

    def width(self, raw: int) -> int:
        """Columns out of the raw feature's. Raises InvalidInput where a step does not fit them."""
        return columns_after(self.steps, raw, f"feature {self.name}")


@dataclass(frozen=True)
class Bucketized:
    """Ids 0..len(boundaries); a value on a boundary goes to the upper bucket."""

    name: str
    of: str
    boundaries: tuple[float, ...]


@dataclass(frozen=True)
class Quantiles:
    """Bucketized by boundaries that cut the values of the first round's trained examples into `count` equal parts.

    The boundaries are exact (numpy's `linear` quantiles over all columns of the raw feature, as float32), equal ones
    count once, and every later version keeps them. Ids 0..quantiles-1; a value on a boundary goes to the upper bucket.
    """

    name: str
    of: str
    quantiles: int


@dataclass(frozen=True)
class Vocabulary:
    """Ids of words (int64 features: of their decimal text).

    Attributes:
        words: given words, in order of their ids; None: learned in the first round, most frequent first, ties in
            byte order, at most max_words, each seen at least min_count times.
        oov: an unknown word is dropped (no id), goes to one of `oov_buckets` ids after the words (by its hash), or is
            an error: the example cannot be trained on, the prediction is refused.
        update: later rounds append new words while there is room (the default).
        forgetting: of learned words.
        file: the definition's file that gives the words, if any.
    """

    name: str
    of: str
    words: tuple[str, ...] | None
    max_words: int
    min_count: int
    oov: str
    oov_buckets: int
    update: bool
    forgetting: Forgetting | None = None
    file: str = field(default="", compare=False)


@dataclass(frozen=True)
class Identity:
    """The raw int64 itself as id, 0..size-1; what lies outside is dropped, clipped into the range, or an error."""

    name: str
    of: str
    size: int
    out_of_range: str


@dataclass(frozen=True)
class Hashed:
    """Fingerprint64 of the word (int64: of its decimal text) modulo bins; the same everywhere."""

    name: str
    of: str
    bins: int


@dataclass(frozen=True)
class Text:
    """Ids of the words of one text, any number of them, by a vocabulary or hashed; `ids` has the same name and `of`."""

    name: str
    of: str
    cut: Cut
    ids: Vocabulary | Hashed

    @property
    def of_pieces(self) -> Vocabulary | Hashed:
        """`ids` with the words as their source: rows of words that are cut otherwise mean something else."""
        return replace(self.ids, of=f"{self.of} {self.cut.in_words}")


@dataclass(frozen=True)
class Crossed:
    """Fingerprint64 of the members' texts joined by 0x1F, modulo bins; of lists, of each value with each."""

    name: str
    of: tuple[str, ...]
    bins: int


@dataclass(frozen=True)
class Embedding:
    """A learned float32 row of `dimension` per id, combined over the ids of an example; no id at all gives zeros.

    Features that name the same `table` share one table; they need the same number of ids and the same dimension.
    `weights` is a raw feature with a number for each id: mean divides by the sum of the weights, sqrtn by the root of
    the sum of their squares (tf.nn.embedding_lookup_sparse). `parts`: how many variables hold the rows.
    """

    name: str
    of: str
    dimension: int
    combiner: str
    table: str
    weights: str | None = None
    parts: int = 1


@dataclass(frozen=True)
class Indicator:
    """One column per id: how often the example has it; with `weights`, a raw feature, the sum of its weights.

    `counts: tf_idf`, of a text: how often, times log(1 + texts / (1 + texts that have it)) over the trained examples
    of all rounds, as keras.layers.TextVectorization counts.
    """

    name: str
    of: str
    weights: str | None = None
    counts: str = "count"


Categorical = Bucketized | Quantiles | Vocabulary | Identity | Hashed | Text | Crossed
Dense = Numeric | Embedding | Indicator
FeatureSpec = Categorical | Dense


def id_count(spec: Categorical) -> int:
    """How many different ids the feature has."""
    match spec:
        case Bucketized():
            return len(spec.boundaries) + 1
        case Quantiles():
            return spec.quantiles
        case Vocabulary():
            return spec.max_words + (spec.oov_buckets if spec.oov == "bucket" else 0)
        case Identity():
            return spec.size
        case Text():
            return id_count(spec.ids)
        case Hashed() | Crossed():
            return spec.bins
