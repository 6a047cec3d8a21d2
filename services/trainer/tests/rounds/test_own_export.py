"""A version's export alone gives the metrics that its round has stated, and no others are taken for them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common.definition.model import parse_definition
from common.registry.catalog import VersionDraft
from common.schema import Schema
from protos.example_pb2 import Example
from services.trainer.control.stated_metrics import fault_of
from services.trainer.protocol.messages import Done, Figures, decode_message, encode_message
from services.trainer.rounds.inputs import RoundInputs, data_of
from services.trainer.rounds.kept import Kept
from services.trainer.rounds.own_export import EXAMPLES_COLUMN, HeldOutEvents, Scorer
from services.trainer.tests.families.test_boosted_trees import trees
from services.trainer.tests.rounds.test_heads import EVERY_TASK, LABELS, labelled, several
from services.trainer.tests.rounds.test_module_rounds import MODULE, module_definition
from services.trainer.tests.support.small_rounds import SCHEMA, Platform, definition, event, events, serialized

_GATE = {"metric": "auc", "confidence": 0.9, "on_not_enough_evidence": "promote"}


def scored(platform: Platform, scorer: Scorer, files: dict[str, bytes], **planned: Any) -> tuple[VersionDraft, Figures]:
    lease = platform.lease(files, **planned)
    ended = platform.train(lease)
    assert isinstance(ended, Done), ended
    draft = platform.registry.drafts[-1]
    work_dir = str(platform.directory / f"scored-{len(platform.registry.drafts)}")
    assignment = platform.assignment(lease).scoring(draft.files, work_dir)
    figures = scorer.figures_of(assignment, registry=platform.registry, log=platform.log)
    heard = decode_message(encode_message(figures))
    assert isinstance(heard, Figures)
    return draft, heard


def odd(*values: float, word: str = "red") -> list[bytes]:
    """Events that a network cannot answer, and one that breaks the rule of a feature."""
    return [
        *(serialized({**event(np.random.default_rng(number)), "x": one}) for number, one in enumerate(values)),
        serialized({**event(np.random.default_rng(9)), "code": 99, "word": word}),
    ]


_RULE = {"type": "identity", "size": 5, "out_of_range": "error"}
_TREES = trees(features={"x": {"type": "numeric"}, "code": _RULE, "unused": {**_RULE, "of": "code", "size": 3}},
               parameters={"columns": ["x", "code"]})  # fmt: skip
_NETWORK = {"x": {"type": "numeric"}, "code": _RULE, "small": {**_RULE, "of": "code", "size": 3}}


@pytest.mark.covers("met-classification")
@pytest.mark.parametrize(
    ("files", "labels"),
    [
        (definition(features=_NETWORK, estimator="linear_classifier", parameters={"wide": ["x", "code"]}, gate=_GATE,
                    evaluation={"holdout_fraction": 0.25, "slices": ["word"]}), ()),
        (module_definition(MODULE, evaluation={"holdout_fraction": 0.25, "window_examples": 60}), ()),
        (_TREES, ()),
        (several(EVERY_TASK, training={"batch_size": 16}), LABELS),
    ],
    ids=["rules and slices", "module", "trees", "heads"],
)  # fmt: skip
def test_the_metrics_of_an_honest_round_are_those_of_its_export(
    tmp_path: Path, files: dict[str, bytes], labels: list[dict[str, Any]]
) -> None:
    platform = Platform(tmp_path, {**SCHEMA, "labels": labels} if labels else SCHEMA)
    asked, made = parse_definition(files), labelled if labels else events
    platform.append([*made(120), *odd(*[float("nan")] * 3, 3e38)])
    scorer, exports = Scorer(), list[object]()
    platform.kept = Kept()
    for parent_version in range(3 if asked.evaluation.window_examples == 60 else 2):
        draft, found = scored(platform, scorer, files, parent_version=parent_version, has_window=bool(parent_version))
        assert fault_of(draft, found, asked) == ""
        assert found.metrics["candidate"], "something is measured"
        assert bool(found.metrics["parent"]) == bool(parent_version)
        exports += [one for _, one in scorer._loaded]
        platform.append([*made(120, seed=2), *odd(float("nan"))])
    assert len(set(map(id, exports))) == 2, "a parent is not loaded again, and a third version takes the first's place"
    name, value = next(iter(draft.metrics["parent"].items()))
    for side, false in (("parent", value + 0.01), ("candidate", draft.metrics["candidate"][name] + 0.01)):
        stated = {**draft.metrics, side: {**draft.metrics[side], name: false}}
        assert f"the round states {false:.6g} for {side} {name}" in fault_of(
            replace(draft, metrics=stated), found, asked
        )
    for name, less in draft.metrics["candidate"].items():
        stated = {**draft.metrics, "candidate": {**draft.metrics["candidate"], name: less + 0.019}}
        has_room = name.endswith("calibration")  # the bins have edges, and these are few examples
        assert (fault_of(replace(draft, metrics=stated), found, asked) == "") == has_room
    assert "held-out events" in fault_of(replace(draft, events_held_out=5000), found, asked)
    without = replace(found, metrics={**found.metrics, "candidate": {}})
    assert f"for candidate {name}, and its export scored outside of its code gives no number" in fault_of(
        replace(draft, metrics={**draft.metrics, "candidate": {name: value}}), without, asked
    )
    own = {**draft.metrics, "candidate": {**draft.metrics["candidate"], "made of its own": 1.0}}
    assert fault_of(replace(draft, metrics=own), found, asked) == "", "nobody else can measure it"


def test_an_export_is_asked_without_the_labels_that_it_could_read(tmp_path: Path) -> None:
    platform, files = Platform(tmp_path).append(events(160)), definition()
    inputs = RoundInputs(parse_definition(files), Schema.from_mapping(SCHEMA), None, None)
    data = data_of(platform.assignment(platform.lease(files)), inputs, platform.log, kind=HeldOutEvents)
    blocks = [*data.parsed(), data.earlier(events(3))]
    asked = [Example.FromString(one) for block in blocks for one in block.raw[EXAMPLES_COLUMN].numpy()]
    assert len(asked) > 3
    labels = {label.name for label in inputs.schema.labels}
    assert all(labels.isdisjoint(one.features.feature) and "x" in one.features.feature for one in asked)
