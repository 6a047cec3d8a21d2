"""What a misspelt word was probably meant to be."""

from collections.abc import Iterable
from difflib import get_close_matches


def did_you_mean(words: Iterable[object], known: Iterable[str]) -> str:
    """A clause to append to a sentence, as in "; did you mean estimator?"; empty where nothing is close."""
    choices = sorted(set(known))
    close = [get_close_matches(str(word), choices, n=1, cutoff=0.7) for word in words]
    found = [matches[0] for matches in close if matches]
    return f"; did you mean {' and '.join(dict.fromkeys(found))}?" if found else ""
