"""docs/reference/model.md: every key of model.yaml, from the code that reads it.

The readers run over definition_samples.yaml and say which keys they ask for, what each must be and its default
(`common.definition.fields.recording`). `definition_words.yaml` says what a key means. A key without words, words
without a key, and a key that no sample shows end the generation with a sentence that names it.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from common.definition.fields import KeyRead, recording
from common.definition.keras_names import OPTIMIZERS, SCHEDULES
from common.definition.losses import DEFAULT_LOSSES, LOSSES, keras_class_of, options_of
from common.definition.metrics import DEFAULTS, KINDS
from common.definition.model import parse_definition
from docs.generate.markdown import bullet, code, page

_METRICS_SECTION = "evaluation: metrics"
_WORDS_FILE = "definition_words.yaml"
_WORDS: Mapping[str, Mapping[str, Mapping[str, str]]] = yaml.safe_load(
    (Path(__file__).parent / _WORDS_FILE).read_text()
)
_SAMPLES: Mapping[str, Any] = yaml.safe_load((Path(__file__).parent / "definition_samples.yaml").read_text())
_TOP: str = _SAMPLES["top"]
_FEATURES: str = _SAMPLES["features"]
_SECTIONS: Mapping[str, str] = _SAMPLES["sections"]
_OF_KERAS = ("activation", "initializer", "embedding_initializer", "regularizer", "learning_rates")
"""Options that keras-names.md has, and patterns that a definition makes up."""
_TREES = "parameters of boosted_trees"
FILES = {"airports.txt": b"EWR\nJFK\n", "vectors.npz": b"", "model.py": b"def build_model(schema, parameters): ...\n"}


def document() -> str:
    keys = _keys_read()
    _check_words(keys)
    return page("model.yaml", __name__, _INTRODUCTION, *(_section(section, keys[section]) for section in _WORDS))


_INTRODUCTION = """\
A definition is a folder with `model.yaml`. Unknown keys are refused at every level, and so is a key given twice. What
each section is for: [A model from features](../guide/model.md), [a Keras module](../guide/keras.md),
[Evaluate and gate](../guide/evaluate.md)."""


def samples() -> list[str]:
    """Definitions that together ask for every key."""
    several = _TOP.replace("label: late\n", "").replace("_classifier", "")
    whole = [
        (several if name == "heads" else _TOP) + _FEATURES + section
        for name, section in (*_SECTIONS.items(), ("", _SAMPLES["cosine"]), ("", _SAMPLES["sequence"]))
        if name != _TREES
    ]
    whole.append(_TOP.replace("estimator: wide_deep_classifier\n", "") + _SECTIONS[_TREES])
    whole += [f"{_TOP}loss: {{name: {name}}}\n{_FEATURES}" for name in ("binary_focal_crossentropy",)]
    whole += [_SAMPLES["two_tower"], _SAMPLES["recurrent"]]
    whole.append(_TOP.replace("wide_deep", "factorization_machine") + _FEATURES + "parameters: {dimension: 8}\n")
    return [_SAMPLES["module"], *whole, _TOP.replace("wide_deep_classifier", "linear_regressor") + _FEATURES]


def _keys_read() -> Mapping[str, Mapping[str, KeyRead]]:
    """{section: {key: what its reader asked}}; the first asking counts, and the first that says what it expects."""
    kinds = yaml.safe_load(_FEATURES)["features"]
    found: dict[str, dict[str, KeyRead]] = {}
    for sample in samples():
        with recording() as reads:
            files = {"model.yaml": sample.encode()} | {n: c for n, c in FILES.items() if n in sample}
            parse_definition(files)
        for key in reads:
            if key.where in _OF_KERAS:
                continue
            name = key.where.removeprefix("feature ")
            where = _section_of(re.sub(r" part \d+$", "", key.where))
            section = f"feature: {kinds[name]['type']}" if name != key.where else where
            keys = found.setdefault(section, {})
            before = keys.get(key.key)
            if before is None:
                keys[key.key] = key
            elif not before.expected:
                keys[key.key] = replace(before, expected=key.expected)
    return found


def _section_of(where: str) -> str:
    """Every head's section is one, and so is the loss of each."""
    return "loss" if where.endswith(": loss") else "heads" if where.startswith("head ") else where


def _check_words(known: Mapping[str, Mapping[str, KeyRead]]) -> None:
    read = {(section, key) for section, keys in known.items() for key in keys if not _is_option(section, key)}
    said = {
        (section, key)
        for section, words in _WORDS.items()
        for part in ("keys", "defaults")
        for key in words.get(part, ())
    }
    for section, key in sorted(read - said):
        raise SystemExit(f"docs: model.yaml, {section}: {key} has no words; add it to docs/generate/{_WORDS_FILE}")
    for section, key in sorted(said - read):
        raise SystemExit(
            f"docs: model.yaml, {section}: no reader asks for {key}; take it out of docs/generate/{_WORDS_FILE}, "
            f"or let a sample in docs/generate/definition_samples.yaml have it"
        )


def _section(section: str, keys: Mapping[str, KeyRead]) -> str:
    order = {key: place for place, key in enumerate(_WORDS[section].get("keys", ()))}
    shown = [one for one in keys.values() if not _is_option(section, one.key)]
    lines = [_key(section, one) for one in sorted(shown, key=lambda one: order.get(one.key, -1))]
    lines += [bullet(f"and {_OPTIONS[section]}: [Keras's names](keras-names.md).")] if section in _OPTIONS else []
    example = _example(section)
    if section == "loss":
        lines += [_loss_line(name) for name in LOSSES]
    if section == _METRICS_SECTION:
        lines += [_metric_line(name) for name in KINDS]
    parts = [f"## {_WORDS[section]['heading']}", "\n".join(lines)]
    return "\n\n".join(parts + ([code(example, "yaml")] if example else []))


_OWN_LOSSES = {
    "quantile": "Koenker and Bassett's check function",
    "pairwise_logistic": "of every two events of a group, the more relevant one should score higher; the default",
    "pairwise_hinge": "of the same pairs, by a margin",
    "listwise_softmax": "the relevances of a group against the softmax of its scores",
    "sampled_softmax": "over the items of a batch, corrected by their frequency",
    "triplet": "Hermans, Beyer and Leibe's triplets of the hardest pairs, `margin` 0.2 by default",
    "contrastive": "Hadsell, Chopra and LeCun's, `margin` 1 by default",
}


def _loss_line(name: str) -> str:
    kind = LOSSES[name]
    keras_class = keras_class_of(name)
    source = f"`keras.losses.{keras_class}`" if keras_class else f"own: {_OWN_LOSSES[name]}"
    tasks = ", ".join(f"{task} (default)" if DEFAULT_LOSSES[task] == name else task for task in kind.tasks)
    options = ", ".join(f"`{option}`" for option in options_of(name))
    return bullet(f"`{name}`: {tasks}. {source}{'; options ' * bool(options)}{options}.")


def _metric_line(name: str) -> str:
    kind = KINDS[name]
    tasks = ", ".join(f"{task} (measured by default)" if name in DEFAULTS[task] else task for task in kind.tasks)
    better = f"; {kind.direction} is better" if kind.direction else "; shown, and not gated on"
    option = ""
    if kind.option:
        default = "required" if kind.option.default is None else f"default `{kind.option.default:g}`"
        option = f" (`{kind.option.key}`: {kind.option.expected}; {default})"
    return bullet(f"`{name}`{option}: {tasks}{better}.")


def _example(section: str) -> str:
    if section == "model.yaml":
        return _TOP
    if section.startswith("feature: "):
        kind = section.removeprefix("feature: ")
        return "".join(line.strip() + "\n" for line in _FEATURES.splitlines() if f"type: {kind}," in line)
    return _SECTIONS.get(section, "")


def _is_option(section: str, key: str) -> bool:
    """Whether it has no words of ours: keras-names.md, or the line of the loss or metric, has it."""
    if section in ("loss", _METRICS_SECTION):
        return key != "name"
    kinds = {"optimizer": OPTIMIZERS, "learning_rate": SCHEDULES}.get(section, {})
    return any(key in named.options for named in kinds.values()) and key not in _WORDS[section]["keys"]


_OPTIONS: Mapping[str, str] = {
    "optimizer": "the options of the optimizer, as Keras names them",
    "learning_rate": "the options of the schedule, as Keras names them",
}


def _key(section: str, key: KeyRead) -> str:
    expected = key.expected
    default = "required" if key.is_required else f"default `{_shown(key.default)}`"
    words = _WORDS[section]
    default = words.get("defaults", {}).get(key.key, default)
    facts = "; ".join(fact for fact in (expected, default) if fact)
    return bullet(f"`{key.key}` ({facts}): {words['keys'][key.key]}")


def _shown(value: object) -> str:
    """As YAML says it."""
    return yaml.safe_dump(list(value) if isinstance(value, tuple) else value, default_flow_style=True).split("\n")[0]
