"""Vocabularies that turn over: the keys that say when a learned word leaves, and who makes room."""

from dataclasses import dataclass

from common.definition.fields import Fields
from common.errors import InvalidInput

_KEYS = ("expire_after_rounds", "expire_after_examples", "evict", "candidates")


@dataclass(frozen=True)
class Forgetting:
    """How a learned vocabulary turns over; without it, who has a row keeps it.

    With it, `min_count` counts over all rounds in which a word waits. At a round's begin what is too old leaves, then
    what was seen often enough comes; who comes back later starts anew. Only trained examples count.

    Attributes:
        after_rounds: rounds in a row without the word after which it leaves; None: any number.
        after_examples: trained examples without the word after which it leaves; None: any number.
        evict: who makes room when the table is full: `least_recent` (seen longest ago), `least_frequent`, or `none`:
            newcomers wait.
        candidates: words without a row that are remembered with their counts; None: four times as many as rows, 1,000
            at least. A word that is not remembered is counted from nothing when it comes again.
    """

    after_rounds: int | None
    after_examples: int | None
    evict: str
    candidates: int | None = None


def read_forgetting(name: str, fields: Fields, *, update: bool) -> Forgetting | None:
    is_given = any(fields.has(key) for key in _KEYS)
    rule = Forgetting(
        fields.optional_integer("expire_after_rounds", None),
        fields.optional_integer("expire_after_examples", None),
        fields.choice("evict", ("none", "least_recent", "least_frequent"), "none"),
        fields.optional_integer("candidates", None),
    )
    if not is_given:
        return None
    if not update:
        raise InvalidInput(
            f"feature {name}: words that expire or are evicted change the table; leave out update: false"
        )
    if (rule.after_rounds, rule.after_examples, rule.evict) == (None, None, "none"):
        raise InvalidInput(f"feature {name}: evict: none alone forgets nothing; say expire_after_rounds, "
                           f"expire_after_examples or another evict")  # fmt: skip
    return rule
