"""two_tower: one network makes a vector of who asks, another one of each item; near vectors belong together.

estimator: two_tower
label: item                          # the raw feature that names the item of an event
features:
  user_id:     {type: vocabulary, max_words: 20000, oov: bucket, evict: least_recent}
  user_vector: {type: embedding, of: user_id, dimension: 32}
  item_id:     {type: vocabulary, of: item, max_words: 5000, oov: drop, evict: least_recent}
  item_vector: {type: embedding, of: item_id, dimension: 32}
parameters: {user: [user_vector], item: [item_vector], dimension: 32, temperature: 0.1, top_k: 10}
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from common.definition.features import Crossed, Embedding, FeatureSpec, Indicator, Numeric, Text, Vocabulary
from common.definition.fields import Fields
from common.definition.forgetting import Forgetting
from common.definition.heads import Head
from common.errors import InvalidInput
from common.suggestions import did_you_mean

TWO_TOWER = "two_tower"
_MOST_ANSWERS = 1000


@dataclass(frozen=True)
class TwoTower:
    """Attributes:
    user, item: features of each tower, each in order of name; those of the item follow from the label alone.
    dimension: of the vectors, which have length 1.
    temperature: what the products of two vectors are divided by in the loss.
    top_k: how many items an answer has.
    candidates: the vocabulary whose words are the items that can be answered.
    """

    user: tuple[str, ...]
    item: tuple[str, ...]
    dimension: int
    temperature: float
    top_k: int
    candidates: str


def read_towers(fields: Fields, features: Mapping[str, FeatureSpec]) -> TwoTower:
    """Raises InvalidInput: which key, what was expected."""
    user, item = (_tower(fields, side, features) for side in ("user", "item"))
    both = sorted(set(user) & set(item))
    if both:
        raise InvalidInput(f"parameters: {both[0]} is in user and in item; a feature belongs to one tower")
    return TwoTower(
        user=user,
        item=item,
        dimension=fields.integer("dimension", 32, maximum=4096),
        temperature=_temperature(fields),
        top_k=fields.integer("top_k", 10, maximum=_MOST_ANSWERS),
        candidates=_candidates(item, features),
    )


def counting(features: Mapping[str, FeatureSpec], towers: TwoTower | None) -> dict[str, FeatureSpec]:
    """The features, with a vocabulary of items that counts them: the loss needs to know how frequent each is."""
    counted = dict(features)
    spec = counted.get(towers.candidates) if towers else None
    if isinstance(spec, Vocabulary) and spec.forgetting is None:
        counted[spec.name] = replace(spec, forgetting=Forgetting(None, None, "none"))
    return counted


def check_towers(towers: TwoTower, features: Mapping[str, FeatureSpec], heads: tuple[Head, ...]) -> None:
    """Raises InvalidInput where the towers do not fit what is learned."""
    if len(heads) != 1:
        raise InvalidInput(f"{TWO_TOWER} learns which item belongs to an event: one head, heads has {len(heads)}")
    label = heads[0].label
    for name in towers.item:
        if (others := sources_of(features, name) - {label}) or label not in sources_of(features, name):
            raise InvalidInput(
                f"parameters: item has {name}, which is made of {', '.join(sorted(others))}; the item tower knows an "
                f"item by the label alone, {label}: what else an event says of it is not known for every candidate"
            )
    for name in towers.user:
        if label in sources_of(features, name):
            raise InvalidInput(f"parameters: user has {name}, which is made of the label {label}: it says the answer")


def sources_of(features: Mapping[str, FeatureSpec], name: str) -> set[str]:
    """The raw features that a feature is made of."""
    spec = features.get(name)
    if spec is None:
        return {name}
    members = spec.of if isinstance(spec, Crossed) else (spec.of,)
    through = isinstance(spec, Crossed | Embedding | Indicator)
    found = {raw for member in members for raw in (sources_of(features, member) if through else {member})}
    weights = spec.weights if isinstance(spec, Embedding | Indicator) else None
    return found | ({weights} if weights else set())


def _tower(fields: Fields, side: str, features: Mapping[str, FeatureSpec]) -> tuple[str, ...]:
    names = fields.texts(side)
    for name in names:
        if not isinstance(features.get(name), Numeric | Embedding | Indicator):
            raise InvalidInput(
                f"parameters: {side} takes numeric, embedding and indicator features, got {name!r}"
                f"{did_you_mean([name], features)}"
            )
    if not names:
        raise InvalidInput(f"parameters: {side} is empty; a tower needs a feature")
    return tuple(sorted(names))


def _temperature(fields: Fields) -> float:
    found = fields.number("temperature", 0.1, minimum=0.0)
    if found < 1e-3:
        raise InvalidInput(f"parameters: temperature must be a number from 0.001, got {found:g}")
    return found


def _candidates(item: tuple[str, ...], features: Mapping[str, FeatureSpec]) -> str:
    ids = {spec.of for spec in (features[name] for name in item) if isinstance(spec, Embedding | Indicator)}
    found = [column for column in (features[name] for name in sorted(ids)) if isinstance(column, Vocabulary | Text)]
    known = [column for column in found if isinstance(column, Vocabulary) and column.words is None]
    if len(known) != 1:
        raise InvalidInput(
            "parameters: item needs an embedding or indicator of exactly one vocabulary of learned words (max_words): "
            "its words are the items that can be answered"
        )
    if known[0].oov != "drop":
        raise InvalidInput(
            f"feature {known[0].name}: oov must be drop, got {known[0].oov}; an item without a row cannot be answered"
        )
    return known[0].name
