"""The stream under faults: points of the plane as in e2e_tests/points.py, each with an id that the log keeps.

Rounds are cheap and every version passes the gate, so that versions change all the while. A judge compares each with
the version before it on keyed predictions, and moves nothing; where a run has canaries, it moves them.
"""

import random
from pathlib import Path
from typing import Any

from headrace import Client

STREAM = "numbered-points"
MODEL = "above"
ROUND_EVENTS = 800
"""Waiting events that start a round, where a run says nothing else."""

_STREAM_YAML = f"""
stream: {STREAM}
features:
  - {{name: a, dtype: float32}}
  - {{name: b, dtype: float32}}
  - {{name: event, dtype: int64}}
  - {{name: row, dtype: int64, required: false, default: 0}}
labels:
  - {{name: above, dtype: int64, min: 0, max: 1}}
late_labels: {{key: event, wait_seconds: 600}}
"""
_MODEL_YAML = f"""
name: {MODEL}
stream: {STREAM}
label: above
seed: 7
estimator: linear_classifier
features:
  a: {{type: numeric, normalize: none}}
  b: {{type: numeric, normalize: none}}
training: {{shards: SHARDS, batch_size: 50, optimizer: {{name: adam, learning_rate: 0.01}}}}
triggers: {{min_examples: ROUND_EVENTS, max_interval_seconds: 3600, cooldown_seconds: 0, max_round_examples: 20000}}
evaluation: {{holdout_fraction: 0.2}}
gate: {{metric: auc, max_regression: 1.0, on_reject: retry}}
"""
_TABLE_FEATURE = """\
  row: {type: identity, size: 250000, out_of_range: clip}
  vector: {type: embedding, of: row, dimension: 32}
"""
"""A table of 32 MB, of which a round touches the rows of its events: versions travel as patches."""
_WATCHED = "rollout: {judge: {metric: error_rate, margin: 0.5}, back: manual}\n"
_STAGED = """rollout:
  judge: {metric: error_rate, margin: 0.5, min_samples: 20}
  canary: {share: [30, 60], by: key, stage_samples: 100, max_samples: null}
"""


def apply(
    client: Client,
    folder: Path,
    *,
    shards: int = 1,
    round_events: int = ROUND_EVENTS,
    has_canary: bool = False,
    has_table: bool = False,
) -> None:
    """Registers the stream and the model. With a canary each version comes to production in two stages; with a table it
    has 32 MB."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "stream.yaml").write_text(_STREAM_YAML)
    model = _MODEL_YAML.replace("SHARDS", str(shards)).replace("ROUND_EVENTS", str(round_events))
    if has_table:
        model = model.replace("linear_classifier", "dnn_classifier").replace("training:", f"{_TABLE_FEATURE}training:")
        model = model.replace("{name: adam, learning_rate: 0.01}", "{name: sgd, learning_rate: 0.1}")
    (folder / "model.yaml").write_text(model + (_STAGED if has_canary else _WATCHED))
    client.apply(folder)


def events(first: int, count: int, *, seed: int) -> list[dict[str, Any]]:
    """Events first, first + 1, ...; the same for the same arguments."""
    source = random.Random(seed * 1_000_003 + first)
    drawn = []
    for event in range(first, first + count):
        a, b = source.uniform(-1, 1), source.uniform(-1, 1)
        drawn.append({"event": event, "row": event, "a": a, "b": b, "above": int(a + b > 0)})
    return drawn
