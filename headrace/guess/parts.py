"""What part each column plays: label, event time, key, feature of the model, or stored only."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from common.counted import counted
from common.errors import InvalidInput
from common.suggestions import there_is_no
from headrace.guess.columns import Column, kind_of

Part = Literal["label", "event time", "key", "feature", "stored"]
_LABEL_NAMES = ("label", "labels", "target", "class", "y", "outcome", "response")
_KEY_NAME = re.compile(r"(^|.*_)(?i:id|key|uuid)$|.*[a-z]I[dD]$")
_ROW_NAMES = frozenset({"index", "id", "row", "rowid", "row_id", "rownames", "unnamed_0"})
_TIME_NAME = re.compile(r"(^|.*_)(time|timestamp|ts|date|datetime|at)$")
_OLDEST_EPOCH, _NEWEST_EPOCH = 3e8, 5e9
MOST_CLASSES = 20
"""Different whole numbers up to which a label counts as classes; with more it is a quantity."""
_MOST_WORD_CLASSES = 100
_SPARE_CLASSES = 5
_MOST_COLUMNS_OF_WORDS = 20
_MOST_LEARNED_WORDS = 20_000
_FEW_VALUES = 12
_NAME_WORDS = 2
"""Texts of more words on average are no names, where most of them differ."""
_SENTENCE_WORDS = 5
_TEXT_WORDS, _TEXT_DIMENSION = 10_000, 16
_OTHER_DATE = re.compile(
    r"(\w{3,9},? )?(\d{1,4}[/.-]\d{1,2}[/.-]\d{1,4}|\d{1,2}[ -][A-Za-z]{3,9}\.?,?[ -]\d{2,4}"
    r"|[A-Za-z]{3,9}\.? \d{1,2},? \d{4})([ T,].*)?"
)
_BY_POINT = re.compile(r"[+-]?[1-9]\d{0,2}\.\d{3}")
_BY_COMMA = re.compile(r"[+-]?[1-9]\d{0,2},\d{3}")
_MOST_REASONS = 5
_FLOAT32_STEP = 2.0**-22
"""Numbers that differ by less than this share of their size are hardly distinct as float32."""


@dataclass(frozen=True)
class Guess:
    """What one column is taken for.

    Attributes:
        feature: of stream.yaml, as Schema reads it.
        specs: entries of the model's `features` section.
        why: one line for people.
    """

    column: Column
    part: Part
    feature: dict[str, Any]
    specs: dict[str, dict[str, Any]]
    why: str


@dataclass(frozen=True)
class LabelGuess:
    """`classes` is 0 for a regression; `words` are the classes of a label of words."""

    feature: dict[str, Any]
    task: str
    classes: int
    why: str


def guess(columns: Sequence[Column], label: str) -> tuple[list[Guess], LabelGuess]:
    """Every column's part. `label` is a header or a name; "" has it guessed. Raises InvalidInput: a column holds what
    no feature can, no column can be the label, or nothing is left to learn from."""
    for column in columns:
        if column.kind == "nested" or "nested" in column.elements:
            raise InvalidInput(
                f"column {column.header!r} holds objects, null in a list, lists beside single values or lists "
                f"three deep; a feature is a number, a text, or a list or a list of lists of one of them: take it "
                f"apart or leave it out of the file"
            )
    if len(columns) == 1:
        raise InvalidInput(
            f"the file has one column, {columns[0].header!r}, and nothing to learn it from; of CSV the cells are "
            f"divided by a comma, semicolon, tab or |, not by blanks"
        )
    chosen = _label_column(columns, label)
    label_guess = _label_of(chosen)
    time = next((column for column in columns if column is not chosen and _is_time(column)), None)
    key = next((column for column in columns if column not in (chosen, time) and _is_key(column)), None)
    guesses = []
    for column in columns:
        if column is chosen:
            feature = label_guess.feature | _as_sent(column)
            guesses.append(Guess(column, "label", feature, {}, label_guess.why))
        elif column is time:
            feature = {"name": column.name, "dtype": "int64"} | _optional(column, "int64") | _as_sent(column)
            guesses.append(
                Guess(column, "event time", feature, {}, "when it happened, epoch seconds; not learned from")
            )
        elif column is key:
            why = f"{column.distinct:,} different: events of one keep their order; not learned from"
            guesses.append(Guess(column, "key", _feature(column), {}, why))
        else:
            guesses.append(_ordinary(column))
    if not any(guessed.specs for guessed in guesses):
        reasons = [
            f"{column_guess.column.header!r} is {column_guess.why}"
            for column_guess in guesses
            if column_guess.part != "label"
        ]
        more = f"; and {len(reasons) - _MOST_REASONS} more" if len(reasons) > _MOST_REASONS else ""
        raise InvalidInput(
            f"beside the label {chosen.header!r} no column has anything to learn from"
            + (f": {'; '.join(reasons[:_MOST_REASONS])}{more}" if reasons else "")
        )
    return guesses, label_guess


def _label_column(columns: Sequence[Column], wanted: str) -> Column:
    if wanted:
        for column in columns:
            if wanted in (column.header, column.name):
                return column
        raise InvalidInput(there_is_no(f"column {wanted!r}", wanted, [column.header for column in columns]))
    for name in _LABEL_NAMES:
        for column in columns:
            if column.name.lower() == name:
                return column
    last = columns[-1]
    why = _no_label(last)
    if why:
        raise InvalidInput(
            f"which column shall be predicted? The last column, {last.header!r}, {why}; say --label COLUMN, one of "
            f"{', '.join(column.header or column.name for column in columns)}"
        )
    return last


def _no_label(column: Column) -> str:
    """Why it is no label; empty where it may be a label."""
    if column.kind == "empty" or column.missing:
        return f"is empty in {column.missing:,} of {column.rows:,} rows"
    if column.kind in ("list", "date", "bytes"):
        return "holds bytes" if column.kind == "bytes" else f"is a {column.kind}"
    return "has a different text in most rows" if column.kind == "text" and column.many else ""


def _label_of(column: Column) -> LabelGuess:
    kind, words = "whole" if column.is_whole else column.kind, column.words()
    if not column.many and len(words) < 2:
        raise InvalidInput(f"label {column.header!r} has {len(words)} different values; there is nothing to tell apart")
    base = {"name": column.name}
    if kind == "truth":
        return LabelGuess(base | {"dtype": "int64", "min": 0, "max": 1}, "binary", 2, "yes or no: 1 or 0")
    numbers = {kind_of(word)[1] for word in words}
    if kind == "whole" and not column.many and len(numbers) <= MOST_CLASSES:
        classes = int(column.maximum) + 1
        if column.minimum >= 0 and classes <= len(numbers) + _SPARE_CLASSES:
            classes = max(2, classes)
            feature = base | {"dtype": "int64", "min": 0, "max": classes - 1}
            return LabelGuess(feature, _task(classes), classes, f"{counted(classes, 'class')}, by their numbers")
        if all(word.strip().lstrip("+-").isdigit() for word in words):
            words = sorted(words, key=int)
            why = f"{counted(len(words), 'class')}, by these numbers as words"
            return LabelGuess(base | {"dtype": "string", "vocabulary": words}, _task(len(words)), len(words), why)
    if kind in ("whole", "number"):
        quantity = f"a quantity from {column.minimum:g} to {column.maximum:g}"
        return LabelGuess(base | {"dtype": "float32"}, "regression", 0, quantity)
    if kind == "text" and not column.many and len(words) <= _MOST_WORD_CLASSES:
        words = sorted(words)
        feature = base | {"dtype": "string", "vocabulary": words}
        return LabelGuess(feature, _task(len(words)), len(words), f"{counted(len(words), 'class')}: {_shown(words)}")
    described = "a date" if kind == "date" else f"{kind} with {column.distinct:,} different values"
    raise InvalidInput(
        f"label {column.header!r} is {described}; "
        f"a label is a number, or one of at most {_MOST_WORD_CLASSES} words; say --label COLUMN"
    )


def _task(classes: int) -> str:
    return "binary" if classes == 2 else "multiclass"


def _is_time(column: Column) -> bool:
    if column.kind == "date":
        return True
    in_range = _OLDEST_EPOCH <= column.minimum <= column.maximum <= _NEWEST_EPOCH
    return column.kind == "whole" and in_range and bool(_TIME_NAME.fullmatch(column.name.lower()))


def _is_key(column: Column) -> bool:
    """An id that comes again: a row's own number orders nothing."""
    repeats = not column.many and 1 < column.distinct < 0.9 * column.rows
    return repeats and column.kind in ("whole", "text") and bool(_KEY_NAME.fullmatch(column.name))


def _is_row_number(column: Column) -> bool:
    counts_up = column.kind == "whole" and column.maximum - column.minimum == column.rows - 1
    named = column.name.lower() in _ROW_NAMES or not column.header or bool(_KEY_NAME.fullmatch(column.name))
    return counts_up and named and (column.many or column.distinct == column.rows)


def _ordinary(column: Column) -> Guess:
    feature = _feature(column)
    specs, why = _specs(column)
    return Guess(column, "feature" if specs else "stored", feature, specs, why)


def _specs(column: Column) -> tuple[dict[str, dict[str, Any]], str]:
    """What the model makes of the column, and why; nothing of some."""
    name, kind = column.name, column.kind
    if kind == "empty":
        return {}, "empty in every row"
    if kind == "list":
        return _list_specs(column)
    if kind == "bytes":
        return {}, "bytes that are no text; say what they are by tensor or image, for a Keras module"
    if not column.many and column.distinct == 1:
        rest = f", or missing in {column.missing:,}" if column.missing else ""
        return {}, f"the same in every row: {_shown(column.words())}{rest}"
    if _is_row_number(column):
        return {}, "numbers the rows; nothing to learn"
    if kind == "date":
        return {}, "a date; epoch seconds, not learned from"
    if kind == "text":
        return _text_specs(column)
    if kind == "truth":
        return {name: {"type": "numeric"}}, "yes or no: 1 or 0"
    return _number_specs(column)


def _number_specs(column: Column) -> tuple[dict[str, dict[str, Any]], str]:
    name, kind = column.name, column.kind
    if _KEY_NAME.fullmatch(name) and kind == "whole":
        return {}, "an id; add it to the model if it says something"
    few = kind == "whole" and not column.many and column.minimum >= 0 and column.maximum < 2 * _FEW_VALUES
    if few and column.distinct <= _FEW_VALUES:
        size = int(column.maximum) + 2
        specs = {name: {"type": "identity", "size": size, "out_of_range": "clip"}}
        return specs | {
            f"{name}_columns": {"type": "indicator", "of": name}
        }, f"{column.distinct} whole numbers, each an input"
    if column.minimum == column.maximum and not column.is_code:
        return {}, f"the same in every row: {column.minimum:g}"
    largest = max(abs(column.minimum), abs(column.maximum))
    if column.maximum - column.minimum < 100 * _FLOAT32_STEP * largest:
        return {}, "numbers too large for their differences to be learned as float32"
    unit = f" in {min(column.units)}" if column.units else ""
    numeric = {name: {"type": "numeric", "normalize": "zscore"}}
    return numeric, f"a number from {column.minimum:g} to {column.maximum:g}{unit}{_doubt(column)}"


def _doubt(column: Column) -> str:
    """What 1.234 or 1,234 is taken for, where nothing in the column says whether the mark is one of thousands."""
    marked = [word.strip() for word in column.words() if "." in word or "," in word]
    if marked and any(all(map(pattern.fullmatch, marked)) for pattern in (_BY_POINT, _BY_COMMA)):
        return f"; {marked[0]} is taken for {kind_of(marked[0])[1]:g}"
    return ""


def _text_specs(column: Column) -> tuple[dict[str, dict[str, Any]], str]:
    name, distinct = column.name, column.distinct
    strays = f"text, by {_shown(column.strays)}; all else are numbers or dates" if column.strays else ""
    if column.words() and all(_OTHER_DATE.fullmatch(word.strip()) for word in column.words()):
        return {}, "a date in another form than 2026-01-31, which is the form that is read; not learned from"
    differs = column.many or distinct > 0.5 * column.rows
    if not strays and _is_sentences(column, differs=differs):
        return _sentence_specs(column)
    if column.many or (distinct > _FEW_VALUES and differs):
        return {}, strays or "different in most rows, so a name or an id; not learned from"
    words = {"type": "vocabulary", "max_words": max(16, 2 * distinct), "oov": "bucket", "update": True}
    if distinct > _MOST_LEARNED_WORDS:
        words = {"type": "hashed", "bins": 2 * distinct}
    if distinct <= _MOST_COLUMNS_OF_WORDS:
        return {
            name: words,
            f"{name}_columns": {"type": "indicator", "of": name},
        }, strays or f"{counted(distinct, 'word')}: {_shown(column.words())}"
    dimension = min(16, max(2, round(distinct**0.35)))
    vector = {"type": "embedding", "of": name, "dimension": dimension}
    return {
        name: words,
        f"{name}_vector": vector,
    }, strays or f"{counted(distinct, 'word')}, a vector of {dimension} numbers each"


def _is_sentences(column: Column, *, differs: bool) -> bool:
    """Whether its words tell more than the whole text: several in a text, and too many texts to be classes."""
    if differs:
        return column.words_a_text > _NAME_WORDS
    is_various = column.distinct > 0.2 * column.rows or column.words_a_text >= _SENTENCE_WORDS
    return column.words_a_text > _NAME_WORDS and column.distinct > _MOST_COLUMNS_OF_WORDS and is_various


def _sentence_specs(column: Column) -> tuple[dict[str, dict[str, Any]], str]:
    """A vector for each word, averaged over the text; of scripts without spaces, for each letter and pair of them."""
    name = column.name
    words: dict[str, Any] = {"type": "text", "of": name, "max_words": _TEXT_WORDS, "oov": "bucket", "update": True}
    of_signs = column.signs > 0.5 * column.pieces
    if of_signs:
        words |= {"split": "characters", "ngrams": 2}
    vector = {"type": "embedding", "of": f"{name}_words", "dimension": _TEXT_DIMENSION}
    unit = "letters" if of_signs else "words"
    why = f"text of about {column.words_a_text:.0f} {unit}; a vector of {_TEXT_DIMENSION} numbers for each"
    return {f"{name}_words": words, f"{name}_vector": vector}, why


def _list_specs(column: Column) -> tuple[dict[str, dict[str, Any]], str]:
    name = column.name
    first, *inner = _shape(column)
    if first is None and any(inner):
        return {}, "steps of several values; a Keras module learns from them"
    sizes = [size for size in (first, *inner) if size is not None]
    if column.elements <= {"whole", "integral", "number"} and len(sizes) == 1 + len(inner):
        return {name: {"type": "numeric", "normalize": "zscore"}}, counted(math.prod(sizes), "number")
    if column.elements in ({"text"}, {"whole"}):
        bags = {"type": "hashed", "bins": 1000}
        of = "words" if column.elements == {"text"} else "whole numbers, taken for ids"
        return {name: bags, f"{name}_vector": {"type": "embedding", "of": name, "dimension": 8}}, f"a list of {of}"
    return {}, "numbers of any count; a recurrent estimator or a Keras module learns from them"


def _feature(column: Column) -> dict[str, Any]:
    """As stream.yaml says it: type, shape, a default where a value may be missing. What lies beyond the file's numbers
    the file does not say, so they have no bounds."""
    dtypes = {"truth": "int64", "whole": "int64", "number": "float32", "date": "int64", "bytes": "bytes"}
    dtype = dtypes.get(column.kind, "string")
    feature: dict[str, Any] = {"name": column.name, "dtype": dtype}
    if column.kind == "list":
        feature |= {"dtype": _list_dtype(column), "shape": _shape(column)}
        return feature | _optional(column, str(feature["dtype"])) | _as_sent(column)
    if column.kind == "truth":
        feature |= {"min": 0, "max": 1}
    return feature | _optional(column, dtype) | _as_sent(column)


def _as_sent(column: Column) -> dict[str, Any]:
    """The name and the words of the file, so that every door takes events as they are there."""
    aliases = {"aliases": [column.header]} if column.header not in ("", column.name) else {}
    return aliases | ({"yes_no": True} if column.kind == "truth" else {})


def _list_dtype(column: Column) -> str:
    if column.elements <= {"whole"}:
        return "int64"
    return "float32" if column.elements <= {"whole", "integral", "number"} else "string"


def _shape(column: Column) -> list[int | None]:
    sizes = [lengths for lengths in (column.lengths, column.row_lengths) if lengths]
    if column.missing or any(len(lengths) > 1 or min(lengths) == 0 for lengths in sizes):
        is_table = len(column.row_lengths) == 1 and min(column.row_lengths) > 0
        return [None, min(column.row_lengths)] if is_table else [None] * len(sizes)
    return [min(lengths) for lengths in sizes]


def _optional(column: Column, dtype: str) -> dict[str, Any]:
    if not column.missing:
        return {}
    if column.kind == "list":
        return {"required": False}
    if dtype in ("string", "bytes"):
        return {"required": False, "default": ""}
    mean = column.mean if column.kind != "empty" else 0.0
    return {"required": False, "default": round(mean) if dtype == "int64" else float(f"{mean:.6g}")}


def _shown(words: Sequence[str]) -> str:
    text = ", ".join(words[:4])
    text = text if len(text) <= 40 else f"{text[:37]}..."
    return text + (", ..." if len(words) > 4 else "")
