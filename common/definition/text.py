"""How a text becomes words (or characters) before they become ids: feature type `text`."""

from dataclasses import dataclass
from typing import Annotated

from common.definition.fields import Allowed

SPLITS = ("words", "whitespace", "characters")
_MOST_NGRAMS = 10


@dataclass(frozen=True)
class Cut:
    """What a text is cut into.

    Attributes:
        split: words (runs of letters, marks, digits and `_`, of any script), whitespace (what stands between white
            space of any script) or characters (code points, white space too).
        lower: the text is written in lower case first, as Unicode says it.
        ngrams: pieces of 1 to this many neighbours, joined by a space (characters: by nothing).
    """

    split: Annotated[str, SPLITS] = "words"
    lower: bool = True
    ngrams: Annotated[int, Allowed(maximum=_MOST_NGRAMS)] = 1

    @property
    def in_words(self) -> str:
        grams = f", up to {self.ngrams} together" if self.ngrams > 1 else ""
        return f"cut into {self.split}{', lower case' if self.lower else ''}{grams}"
