"""What a misspelt word was probably meant to be."""

from collections.abc import Iterable
from difflib import SequenceMatcher, get_close_matches

from common.errors import InvalidInput

_MOST_LISTED = 12


def did_you_mean(words: Iterable[object], known: Iterable[str]) -> str:
    """A clause to append to a sentence, as in "; did you mean estimator?"; empty where nothing is close."""
    choices = sorted(set(known))
    close = [get_close_matches(str(word), choices, n=1, cutoff=0.7) for word in words]
    found = [matches[0] for matches in close if matches]
    return f"; did you mean {' and '.join(dict.fromkeys(found))}?" if found else ""


def there_is_no(subject: str, name: str, known: Iterable[str]) -> str:
    """A sentence: "there is no column 'knd'; there are id, kind; did you mean kind?"; `subject` names it with its kind.

    Of more than twelve names those that are most like it are listed, and how many others there are.
    """
    names = list(dict.fromkeys(known))
    shown = names if len(names) <= _MOST_LISTED else near(name, names)
    others = len(names) - len(shown)
    listed = ", ".join(shown) + (f" and {others:,} more" if others else "")
    return f"there is no {subject}; {'there are' if len(names) > 1 else 'there is'} {listed or 'none'}" + did_you_mean(
        [name], names
    )


def refuse_unknown(where: str, given: Iterable[object], known: Iterable[str]) -> None:
    """Raises InvalidInput for keys that are not among the known; `where` begins the sentence."""
    names = set(known)
    if unknown := sorted(str(key) for key in given if key not in names):
        raise InvalidInput(f"{where} has unknown keys {unknown}{did_you_mean(unknown, names)}; known: {sorted(names)}")


def near(word: str, known: Iterable[str], *, count: int = 5) -> list[str]:
    """Those that hold it, then those of which as many parts of the path are most like it; where none is, the first."""
    choices = list(dict.fromkeys(known))
    likeness = {name: max(_likeness(word, part) for part in _parts(name, like=word)) for name in choices}
    holding = [name for name in choices if word.lower() in name.lower()]
    close = sorted((name for name in choices if likeness[name] > 0.5), key=lambda name: -likeness[name])
    return list(dict.fromkeys((*holding, *close)))[:count] or choices[:count]


def _parts(path: str, *, like: str) -> list[str]:
    """The path, and every run of as many of its parts as the word has, without the number of an output."""
    parts, length = path.partition(":")[0].split("/"), like.count("/") + 1
    return [path, *("/".join(parts[start : start + length]) for start in range(len(parts) - length + 1))]


def _likeness(word: str, other: str) -> float:
    return SequenceMatcher(None, word.lower(), other.lower()).ratio()
