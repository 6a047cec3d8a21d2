"""Reads the section `features` of a definition (features.py), and checks that its features fit each other."""

from collections.abc import Callable, Mapping

from common.definition.features import (
    Bucketized,
    Categorical,
    Crossed,
    Embedding,
    FeatureSpec,
    Hashed,
    Identity,
    Indicator,
    Numeric,
    Quantiles,
    Text,
    Vocabulary,
    id_count,
)
from common.definition.fields import Fields
from common.definition.forgetting import read_forgetting
from common.definition.steps import read_steps
from common.definition.text import Cut
from common.errors import InvalidInput
from common.feature_keys import check_name

MOST_QUANTILES = 10_000
_MOST_PARTS = 1024
COUNTS = ("count", "tf_idf")
EMBEDDING_COMBINERS = ("mean", "sum", "sqrtn")


def parse_features(section: object, files: Mapping[str, bytes]) -> dict[str, FeatureSpec]:
    """Reads the section. `files` is the definition's folder, for vocabulary files. Raises InvalidInput: which feature,
    which key, what was expected."""
    if not isinstance(section, Mapping):
        raise InvalidInput(f"features must be a mapping of name to feature, got {section!r}")
    specs = {check_name("feature", name): _feature(name, mapping, files) for name, mapping in section.items()}
    for spec in specs.values():
        _check_members(spec, specs)
    _check_shared_tables(specs)
    return specs


def _feature(name: str, mapping: object, files: Mapping[str, bytes]) -> FeatureSpec:
    fields = Fields(f"feature {name}", mapping)
    kind = fields.choice("type", tuple(_READERS))
    spec = _READERS[kind](name, fields, files)
    fields.finish()
    return spec


def _numeric(name: str, fields: Fields, files: Mapping[str, bytes]) -> Numeric:
    normalize = fields.choice("normalize", ("none", "zscore", "minmax"), "none")
    update = fields.flag("update", normalize != "none")
    if update and normalize == "none":
        raise InvalidInput(f"feature {name}: update has nothing to update without normalize")
    of, log = fields.text("of", name), fields.flag("log", False)
    steps = read_steps(fields.take("transform"), fields.where) if fields.has("transform") else ()
    fields.take("transform", None)
    if not fields.has("clip"):
        fields.take("clip", None)
        return Numeric(name, of, normalize, update, log=log, steps=steps)
    bounds = fields.numbers("clip")
    if len(bounds) != 2 or bounds[0] >= bounds[1]:
        raise InvalidInput(f"feature {name}: clip must be [low, high], got {list(bounds)}")
    return Numeric(name, of, normalize, update, (bounds[0], bounds[1]), log, steps)


def _bucketized(name: str, fields: Fields, files: Mapping[str, bytes]) -> Bucketized | Quantiles:
    if sum(fields.has(key) for key in ("boundaries", "quantiles")) != 1:
        raise InvalidInput(
            f"feature {name}: bucketized needs one of boundaries and quantiles (to fit the boundaries of this "
            f"many equal parts in the first round)"
        )
    if fields.has("quantiles"):
        return Quantiles(name, fields.text("of", name), fields.integer("quantiles", minimum=2, maximum=MOST_QUANTILES))
    boundaries = fields.numbers("boundaries")
    if list(boundaries) != sorted(set(boundaries)):
        raise InvalidInput(f"feature {name}: boundaries must increase, got {list(boundaries)}")
    return Bucketized(name, fields.text("of", name), boundaries)


def _vocabulary(name: str, fields: Fields, files: Mapping[str, bytes]) -> Vocabulary:
    if sum(fields.has(key) for key in ("words", "file", "max_words")) != 1:
        raise InvalidInput(
            f"feature {name}: a vocabulary needs one of words, file (one word a line) and max_words (to learn them)"
        )
    of = fields.text("of", name)
    oov = fields.choice("oov", ("drop", "bucket", "error"))
    oov_buckets = fields.integer("oov_buckets", 1, maximum=1_000_000) if oov == "bucket" else 0
    if fields.has("max_words"):
        max_words = fields.integer("max_words", maximum=10_000_000)
        min_count, update = fields.integer("min_count", 1), fields.flag("update", True)
        forgetting = read_forgetting(name, fields, update=update)
        return Vocabulary(name, of, None, max_words, min_count, oov, oov_buckets, update, forgetting)
    file = fields.text("file") if fields.has("file") else ""
    words = _words_of_file(name, file, files) if file else fields.texts("words", may_be_empty=True)
    if not words:
        raise InvalidInput(f"feature {name}: the vocabulary has no words")
    return Vocabulary(name, of, words, len(words), 1, oov, oov_buckets, False, file=file)


def _words_of_file(name: str, path: str, files: Mapping[str, bytes]) -> tuple[str, ...]:
    if path not in files:
        raise InvalidInput(f"feature {name}: the definition has no file {path}; it has {', '.join(sorted(files))}")
    try:
        words = tuple(word for word in files[path].decode().split("\n") if word)
    except UnicodeDecodeError as error:
        raise InvalidInput(f"feature {name}: {path} is not UTF-8: {error}") from error
    if len(set(words)) != len(words):
        raise InvalidInput(f"feature {name}: {path} has a word twice")
    return words


def _identity(name: str, fields: Fields, files: Mapping[str, bytes]) -> Identity:
    size = fields.integer("size", maximum=10_000_000)
    return Identity(name, fields.text("of", name), size, fields.choice("out_of_range", ("drop", "clip", "error")))


def _hashed(name: str, fields: Fields, files: Mapping[str, bytes]) -> Hashed:
    return Hashed(name, fields.text("of", name), fields.integer("bins", maximum=10_000_000))


def _text(name: str, fields: Fields, files: Mapping[str, bytes]) -> Text:
    cut = fields.made(Cut)
    keys = ("words", "file", "max_words", "bins")
    if sum(fields.has(key) for key in keys) != 1:
        raise InvalidInput(
            f"feature {name}: a text needs one of words, file (one word a line), max_words (to learn them) and bins "
            f"(to hash them)"
        )
    ids = _hashed(name, fields, files) if fields.has("bins") else _vocabulary(name, fields, files)
    return Text(name, ids.of, cut, ids)


def _crossed(name: str, fields: Fields, files: Mapping[str, bytes]) -> Crossed:
    members = fields.texts("of")
    if len(members) < 2:
        raise InvalidInput(f"feature {name}: crossed needs at least two members in of, got {list(members)}")
    return Crossed(name, members, fields.integer("bins", maximum=10_000_000))


def _embedding(name: str, fields: Fields, files: Mapping[str, bytes]) -> Embedding:
    dimension = fields.integer("dimension", maximum=65_536)
    combiner = fields.choice("combiner", EMBEDDING_COMBINERS, "mean")
    table = check_name("table", fields.text("table", name))
    parts = fields.integer("parts", 1, maximum=_MOST_PARTS)
    return Embedding(name, fields.text("of"), dimension, combiner, table, fields.optional_text("weights"), parts)


def _indicator(name: str, fields: Fields, files: Mapping[str, bytes]) -> Indicator:
    return Indicator(name, fields.text("of"), fields.optional_text("weights"), fields.choice("counts", COUNTS, "count"))


_READERS: Mapping[str, Callable[[str, Fields, Mapping[str, bytes]], FeatureSpec]] = {
    "numeric": _numeric,
    "bucketized": _bucketized,
    "vocabulary": _vocabulary,
    "identity": _identity,
    "hashed": _hashed,
    "text": _text,
    "crossed": _crossed,
    "embedding": _embedding,
    "indicator": _indicator,
}


def _check_members(spec: FeatureSpec, specs: Mapping[str, FeatureSpec]) -> None:
    if isinstance(spec, Embedding | Indicator):
        member = specs.get(spec.of)
        if not isinstance(member, Categorical):
            raise InvalidInput(
                f"feature {spec.name}: of {spec.of!r} is no categorical feature of this section "
                f"(bucketized, vocabulary, identity, hashed, text, crossed)"
            )
        if isinstance(spec, Indicator) and spec.counts == "tf_idf":
            _check_tf_idf(spec, member)
    if isinstance(spec, Crossed):
        for name in spec.of:
            member = specs.get(name)
            if isinstance(member, Vocabulary) and member.forgetting:
                raise InvalidInput(
                    f"feature {spec.name}: {name} forgets words and gives their ids to others, so a cross of its ids "
                    f"would change its meaning; cross the raw feature {member.of}, under another name"
                )
            if isinstance(specs.get(name), Numeric | Embedding | Indicator | Text | Crossed):
                raise InvalidInput(
                    f"feature {spec.name}: {name} cannot be crossed; members are raw strings or int64s, or bucketized, "
                    f"vocabulary, identity or hashed features"
                )


def _check_tf_idf(spec: Indicator, member: Categorical) -> None:
    if not isinstance(member, Text) or spec.weights is not None:
        raise InvalidInput(f"feature {spec.name}: counts: tf_idf weighs the words of a text, and {spec.of} is none")
    if isinstance(member.ids, Vocabulary) and member.ids.forgetting:
        raise InvalidInput(
            f"feature {spec.name}: {spec.of} forgets words and gives their ids to others, so it is not known in how "
            f"many texts an id was; leave expire_after and evict out, or counts: tf_idf"
        )


def _check_shared_tables(specs: Mapping[str, FeatureSpec]) -> None:
    """Those that share a table need the same ids: row 3 must mean the same word for each of them."""
    shapes: dict[str, tuple[str, tuple[int, int]]] = {}
    meanings: dict[str, object] = {}
    parts: dict[str, int] = {}
    for spec in specs.values():
        if not isinstance(spec, Embedding):
            continue
        member = specs[spec.of]
        assert isinstance(member, Categorical)
        shape = (id_count(member), spec.dimension)
        if spec.parts > shape[0]:
            raise InvalidInput(f"feature {spec.name}: {spec.parts} parts of a table of {shape[0]} rows; some are empty")
        if parts.setdefault(spec.table, spec.parts) != spec.parts:
            raise InvalidInput(f"feature {spec.name} shares table {spec.table}: give all of its features as many parts")
        first, expected = shapes.setdefault(spec.table, (spec.name, shape))
        if shape != expected:
            raise InvalidInput(
                f"features {first} and {spec.name} share table {spec.table} but need shapes {expected} and {shape}"
            )
        meaning = _meaning_of_ids(member)
        if meanings.setdefault(spec.table, meaning) != meaning:
            raise InvalidInput(
                f"features {first} and {spec.name} share table {spec.table} but not their ids: give both the same "
                f"type with the same words, boundaries, size or bins (learned words differ from feature to feature)"
            )


def _meaning_of_ids(spec: Categorical) -> object:
    """Equal for features whose equal ids mean the same, from any source."""
    match spec:
        case Bucketized():
            return ("bucketized", spec.boundaries)
        case Quantiles():
            return ("quantiles", spec.of, spec.quantiles)
        case Vocabulary():
            return ("vocabulary", spec.words or spec.of, spec.oov_buckets)
        case Identity():
            return ("identity",)
        case Hashed():
            return ("hashed",)
        case Text():
            return _meaning_of_ids(spec.of_pieces)
        case Crossed():
            return ("crossed", spec.of)
