"""Every mode of examples/cluster is a definition and settings that the trainer takes, and ways differ as they say."""

import pytest
import yaml

from common.definition.model import parse_definition
from examples.cluster.__main__ import EXAMPLES, modes
from services.trainer.settings import TrainerSettings
from testing.rows import each_row


@each_row("name", modes())
def test_a_mode_is_taken_as_it_stands(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mode = modes()[name]
    files = {
        "model.yaml": yaml.safe_dump(mode.definition()).encode(),
        "model.py": (EXAMPLES / "digits" / "model.py").read_bytes(),
    }
    training = parse_definition(files).training
    assert training.shards > 1 or training.asynchronous
    plain = TrainerSettings(event_log="segments:/nowhere").model_dump()
    for key, value in mode.environment.items():
        monkeypatch.setenv(key, str(value))
        field = key.removeprefix("TRAINER_").lower()
        assert getattr(TrainerSettings(event_log="segments:/nowhere"), field) != plain[field], (
            "the setting is there, and is not the default"
        )
