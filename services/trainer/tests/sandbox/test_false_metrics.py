"""A module that states metrics which its version does not have is refused, and costs the trainer nothing."""

import pytest

from common.registry.client import RegistryClient
from services.trainer.__main__ import ROUND_FUNCTION
from services.trainer.tests.support.platform_processes import MODEL, STREAM, Events, TrainerProcess, definition
from testing.waiting import wait_until

_HONEST = """
import keras

def build_model(schema, parameters):
    inputs = keras.Input((1,), name="distance")
    return keras.Model({"distance": inputs}, keras.layers.Dense(1)(inputs))
"""
_FALSE = """
from services.trainer.learn.metrics.collected import Slices

measured = Slices.metrics
Slices.metrics = lambda self: {name: 0.999 for name in measured(self)}
"""


def register(registry: RegistryClient, module: str) -> None:
    text = definition(
        triggers="{min_examples: 40}", gate="{metric: auc, min_value: 0.9}", evaluation="{metrics: [auc]}"
    )
    text = text.replace(b"estimator: linear_classifier\n", b"module: module.py\ntask: binary\n")
    text = text.replace(b"features:\n  distance: {type: numeric}\n", b"")
    files = {"model.yaml": text, "module.py": (_HONEST + module).encode()}
    registry.register_model(MODEL, stream=STREAM, files=files, by="test")


@pytest.mark.covers("met-classification")
@pytest.mark.parametrize("setting", ["modules", "none"])
def test_the_gate_judges_no_metrics_but_those_of_the_export(
    trainer: TrainerProcess, registry: RegistryClient, events: Events, setting: str
) -> None:
    trainer.round_function = ROUND_FUNCTION
    trainer.environment["TRAINER_SCORE_OUTSIDE"] = setting
    register(registry, _FALSE if setting == "none" else "")
    trainer.start()
    events.add(200)

    def ended() -> bool:
        model = registry.get_model(MODEL)
        return bool(model.newest_version or model.last_failure)

    wait_until(ended, "the round ends")
    version = registry.get_version(MODEL, 1)
    told = version.environment["scored_outside"]
    if setting == "none":
        assert version.metrics["candidate"]["auc"] == 0.999
        reason = "TRAINER_SCORE_OUTSIDE is none"
        assert told == {"reason": reason, "unscored": {"auc": reason}}
        assert f"auc is the word of the round's process: {reason}" in version.verdict.reasons
        return
    assert told["metrics"]["candidate"]["auc"] == pytest.approx(version.metrics["candidate"]["auc"], abs=1e-4)
    honest = registry.get_model(MODEL).definition_digest
    register(registry, _FALSE)
    events.add(200)
    wait_until(lambda: registry.get_model(MODEL).last_failure, "the round fails")
    model = registry.get_model(MODEL)
    assert {one.definition_digest for one in registry.list_versions(MODEL)} == {honest}
    assert "the round states 0.999 for candidate auc" in str(model.last_failure)
    assert trainer.get("/healthz")[0] == 200
