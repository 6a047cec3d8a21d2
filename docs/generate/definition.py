"""docs/reference/model.md: every key of model.yaml, from the code that reads it.

The readers run over the samples below and say which keys they ask for, what each must be and its default
(`common.definition.fields.recording`). `definition_words.yaml` says what a key means. A key without words, words
without a key, and a key that no sample shows end the generation with a sentence that names it.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import yaml

from common.definition.fields import Asked, recording
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
_FEATURES = """\
features:
  distance: {type: numeric, normalize: zscore, update: false, transform: [abs, {power: 0.5}]}
  hour: {type: bucketized, of: departure_minute, boundaries: [360, 720, 1080]}
  decile: {type: bucketized, of: departure_minute, quantiles: 10}
  carrier: {type: vocabulary, max_words: 50, min_count: 2, oov: bucket, oov_buckets: 2, update: true}
  origin: {type: vocabulary, words: [EWR, JFK, LGA], oov: error}
  airport: {type: vocabulary, of: dest, file: airports.txt, oov: drop}
  month: {type: identity, size: 13, out_of_range: error}
  flight: {type: hashed, bins: 1000}
  review_words: {type: text, of: review, ngrams: 2, max_words: 1000, oov: bucket, oov_buckets: 8}
  review_hashes: {type: text, of: review, split: characters, ngrams: 3, bins: 10000}
  route: {type: crossed, of: [origin, carrier], bins: 1000}
  route_vector: {type: embedding, of: route, dimension: 8, combiner: mean, table: route_vector}
  month_columns: {type: indicator, of: month}
"""
_TOP = """\
name: flights-late
stream: flights
label: late
seed: 7
estimator: wide_deep_classifier
"""
_MODULE_TOP = "name: digits\nstream: digits\nlabel: digit\nmodule: model.py\ntask: multiclass\n"
_WARMUP = """\
training:
  optimizer:
    learning_rate: {schedule: cosine, initial: 0.1, decay_steps: 1000, warmup: {steps: 50, from: 0.0}}
"""
_SEQUENCE = """\
training:
  optimizer:
    learning_rate:
      schedule: sequence
      parts:
        - {steps: 100, schedule: constant, initial: 0.1}
        - {schedule: exponential_decay, initial_learning_rate: 0.1, decay_steps: 1000, decay_rate: 0.9}
"""
_SECTIONS = {
    "heads": """\
heads:
  late: {label: late, task: binary, loss: focal, class_weights: {0: 1, 1: 5}, label_smoothing: 0.1}
  kind: {label: kind, task: multiclass, classes: 3}
  delay: {label: delay, task: regression, loss: {name: huber, delta: 0.5}, weight: 0.1}
  delay_range: {label: delay, task: quantiles, levels: [0.1, 0.5, 0.9], standardize: [9, 40]}
""",
    "parameters": """\
parameters:
  classes: 2
  wide: [carrier, route]
  deep: [distance, route_vector]
  hidden_units: [64, 32]
  activation: {name: elu, alpha: 0.5}
  initializer: he_normal
  embedding_initializer: {name: random_normal, stddev: 0.01}
  regularizer: {name: orthogonal_regularizer, factor: 0.01}
  dropout: 0.1
  batch_norm: true
  l2: 0.0001
""",
    "parameters of boosted_trees": """\
estimator: boosted_trees_classifier
features:
  distance: {type: numeric}
  carrier: {type: vocabulary, max_words: 50, oov: drop}
parameters:
  columns: [carrier, distance]
  trees_per_round: 50
  max_trees: 500
  max_depth: 6
  learning_rate: 0.1
  grow_policy: lossguide
  max_leaves: 31
  min_child_weight: 1.0
  gamma: 0.0
  lambda: 1.0
  alpha: 0.0
  subsample: 0.8
  colsample_bytree: 0.8
  colsample_bynode: 1.0
""",
    "training": """\
training:
  batch_size: 256
  passes: 1
  optimizer:
    name: adam
    learning_rate: 0.001
    clip_norm: 1.0
  frozen: [route_vector_table]
  learning_rates: {deep: 0.5}
""",
    "summaries": "training:\n  summaries: {histograms: 4, worst: 8, statistics: true, graph: true, projector: 1000}\n",
    "early_stopping": """\
training:
  evaluate_every_steps: 200
  early_stopping: {metric: auc, patience: 3, min_delta: 0.001}
""",
    "optimizer": "training:\n  optimizer: {name: sgd, learning_rate: 0.01, momentum: 0.9, nesterov: true}\n",
    "learning_rate": """\
training:
  optimizer: {name: sgd, learning_rate: {schedule: exponential, initial: 0.01, decay_steps: 1000, decay_rate: 0.9}}
""",
    "warmup": _WARMUP,
    "triggers": """\
triggers:
  min_examples: 20000
  max_interval_seconds: 60
  cooldown_seconds: 1
  max_round_examples: 200000
  schedule: {cron: 30 2 * * 1-5, time_zone: Europe/Berlin}
  upstream: carriers
  quality: {metric: error_rate, margin: 0.02, alpha: 0.01, min_samples: 100}
  drift: {window_examples: 1000, alpha: 0.01, leave_out: [scheduled_hour], scores: true}
""",
    "warm_start": """\
warm_start:
  from: vectors.npz
  variables: [route_vector_table]
  rename: {table: route_vector_table/table}
  freeze: route_vector_table
""",
    "evaluation": """\
evaluation:
  holdout_fraction: 0.1
  metrics: [auc, recall, {name: precision, threshold: 0.3}]
  slices: [carrier, {by: distance, boundaries: [500, 1000]}]
  group_by: flight
""",
    "evaluation: slices": """\
evaluation:
  slices:
    - carrier
    - {by: [carrier, month], most: 50}
    - {by: distance, boundaries: [500, 1000]}
""",
    "gate": """\
gate:
  metric: auc
  direction: higher
  max_regression: 0.01
  min_value: 0.55
  max_value: null
  min_examples: 200
  confidence: 0.95
  on_not_enough_evidence: reject
  max_state_bytes: 500000000
  max_p99_ms: 20
  max_skew: 0.001
  on_reject: retry
  canary: false
""",
    "gate: rules": """\
evaluation: {slices: [carrier]}
gate:
  rules:
    - {metric: auc, max_regression: 0.005}
    - {metric: accuracy, slice: {carrier: AA}, min_value: 0.6, min_examples: 50}
    - {metric: auc, direction: higher, slice: carrier, min_value: 0.5, max_value: null}
""",
    "export": """\
export:
  warmup_requests: 16
  formats: [tflite, tflite_int8, onnx]
  on_unsupported: fail
  checkpoint_shard_bytes: 268435456
""",
    "labels": "labels: {late: train}\n",
    "live": "live:\n  window_examples: 2000\n",
    "rollout": "rollout:\n  judge: {metric: error_rate}\n  back: automatic\n",
    "rollout: canary": """\
rollout:
  judge: {metric: error_rate, margin: 0.01}
  canary: {share: [1, 10, 50], by: key, stage_samples: 500, max_samples: 20000, max_seconds: 86400, then: back}
""",
    "rollout: canary: guards": """\
rollout:
  judge: {metric: error_rate}
  canary:
    share: [1, 10, 50]
    guards: {errors: 0.01, latency: 2, answers: 0.2, memory_bytes: 2000000000}
""",
    "rollout: judge": """\
rollout:
  judge: {metric: error_rate, margin: 0.02, alpha: 0.01, min_samples: 100, max_samples: 20000, then: hold}
""",
    "event_window": "event_window: {features: [distance], size: 10, stride: 1, lookback_records: 1000}\n",
    "retention": """\
retention:
  keep_all_hours: 1
  keep_hourly_days: 7
  keep_daily_days: null
  keep_newest: 1
""",
    "serving": "serving:\n  engine: auto\n  slo_ms: 20\n  batching: {max_batch_size: 64}\n",
    "serving: batching": """\
serving:
  batching:
    max_batch_size: 64
    batch_timeout_micros: 0
    max_enqueued_batches: 10
    num_batch_threads: 1
    allowed_batch_sizes: [8, 32]
    max_execution_batch_size: 32
    enable_large_batch_splitting: true
    pad_variable_length_inputs: false
    is_enabled: true
""",
}
_OF_KERAS = ("activation", "initializer", "embedding_initializer", "regularizer", "learning_rates")
"""Options that keras-names.md has, and patterns that a definition makes up."""
_TREES = "parameters of boosted_trees"
_COSINE = "training: {optimizer: {learning_rate: {schedule: cosine, initial: 0.1, decay_steps: 10, floor: 0.1}}}\n"
_TWO_TOWER = """\
name: m
stream: s
label: dest
estimator: two_tower
features:
  airport: {type: vocabulary, of: dest, max_words: 50, oov: drop}
  route_vector: {type: embedding, of: airport, dimension: 8}
  distance: {type: numeric}
parameters: {user: [distance], item: [route_vector], dimension: 8, temperature: 0.1, top_k: 5}
"""
_RECURRENT = """\
name: m
stream: s
label: late
estimator: rnn_classifier
features:
  flight: {type: hashed, bins: 100}
  route_vector: {type: embedding, of: flight, dimension: 8}
  distance: {type: numeric}
parameters: {sequence: [route_vector], context: [distance], cell: gru, units: [32]}
"""
FILES = {"airports.txt": b"EWR\nJFK\n", "vectors.npz": b"", "model.py": b"def build_model(schema, parameters): ...\n"}


def document() -> str:
    asked = _asked()
    _check_words(asked)
    return page("model.yaml", __name__, _INTRODUCTION, *(_section(section, asked[section]) for section in _WORDS))


_INTRODUCTION = """\
A definition is a folder with `model.yaml`. Unknown keys are refused at every level, and so is a key given twice. What
each section is for: [A model from features](../guide/model.md), [a Keras module](../guide/keras.md),
[Evaluate and gate](../guide/evaluate.md)."""


def samples() -> list[str]:
    """Definitions that together ask for every key."""
    several = _TOP.replace("label: late\n", "").replace("_classifier", "")
    whole = [
        (several if name == "heads" else _TOP) + _FEATURES + section
        for name, section in (*_SECTIONS.items(), ("", _COSINE), ("", _SEQUENCE))
        if name != _TREES
    ]
    whole.append(_TOP.replace("estimator: wide_deep_classifier\n", "") + _SECTIONS[_TREES])
    whole += [f"{_TOP}loss: {{name: {name}}}\n{_FEATURES}" for name in ("binary_focal_crossentropy",)]
    whole += [_TWO_TOWER, _RECURRENT]
    whole.append(_TOP.replace("wide_deep", "factorization_machine") + _FEATURES + "parameters: {dimension: 8}\n")
    return [_MODULE_TOP, *whole, _TOP.replace("wide_deep_classifier", "linear_regressor") + _FEATURES]


def _asked() -> Mapping[str, Mapping[str, Asked]]:
    """{section: {key: what its reader asked}}; the first asking counts, and the first that says what it expects."""
    kinds = yaml.safe_load(_FEATURES)["features"]
    found: dict[str, dict[str, Asked]] = {}
    for sample in samples():
        with recording() as asked:
            files = {"model.yaml": sample.encode()} | {n: c for n, c in FILES.items() if n in sample}
            parse_definition(files)
        for one in asked:
            if one.where in _OF_KERAS:
                continue
            name = one.where.removeprefix("feature ")
            where = _section_of(re.sub(r" part \d+$", "", one.where))
            section = f"feature: {kinds[name]['type']}" if name != one.where else where
            keys = found.setdefault(section, {})
            before = keys.get(one.key)
            if before is None:
                keys[one.key] = one
            elif not before.expected:
                keys[one.key] = replace(before, expected=one.expected)
    return found


def _section_of(where: str) -> str:
    """Every head's section is one, and so is the loss of each."""
    return "loss" if where.endswith(": loss") else "heads" if where.startswith("head ") else where


def _check_words(asked: Mapping[str, Mapping[str, Asked]]) -> None:
    read = {(section, key) for section, keys in asked.items() for key in keys if not _is_option(section, key)}
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
            f"or let a sample in docs/generate/definition.py have it"
        )


def _section(section: str, keys: Mapping[str, Asked]) -> str:
    lines = [_key(section, one) for one in keys.values() if not _is_option(section, one.key)]
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


def _key(section: str, one: Asked) -> str:
    expected = one.expected
    default = "required" if one.is_required else f"default `{_shown(one.default)}`"
    words = _WORDS[section]
    default = words.get("defaults", {}).get(one.key, default)
    facts = "; ".join(fact for fact in (expected, default) if fact)
    return bullet(f"`{one.key}` ({facts}): {words['keys'][one.key]}")


def _shown(value: object) -> str:
    """As YAML says it."""
    return yaml.safe_dump(list(value) if isinstance(value, tuple) else value, default_flow_style=True).split("\n")[0]
