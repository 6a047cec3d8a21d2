"""What a frozen base returns, computed once and kept by its digest."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from services.trainer.learn import checkpoint
from services.trainer.protocol.messages import Done
from services.trainer.tests.families.test_modules import module
from services.trainer.tests.support.small_rounds import Platform, events, rebuilt

MODULE = """
def build_model(schema, parameters):
    x, pair = keras.Input((), name="x"), keras.Input((2,), name="pair")
    base = keras.Sequential(
        [keras.Input((2,)), keras.layers.Dense(6, "tanh"), keras.layers.BatchNormalization()],
        name="base",
    )
    joined = keras.layers.Concatenate()([base(pair), keras.layers.Reshape((1,))(x)])
    hidden = keras.layers.Dense(parameters.get("units", 3), "relu", name="top")(joined)
    return keras.Model({"x": x, "pair": pair}, keras.layers.Dense(1)(hidden))
"""


def _files(*, cached: bool = True, source: str = MODULE, **sections: Any) -> dict[str, bytes]:
    asked = {"bottleneck": "base"} if cached else {"frozen": ["base"]}
    return module(source, **{"training": {"batch_size": 8, "passes": 2} | asked, **sections})


@pytest.mark.covers("mode-bottleneck")
def test_a_second_round_over_the_same_events_reads_what_the_base_returned(tmp_path: Path) -> None:
    platform = Platform(tmp_path).append(events(60))
    rounds = [_files(), _files(parameters={"units": 5}), _files(cached=False)]
    leases = [platform.lease(files) for files in rounds]
    for lease in leases:
        assert isinstance(platform.train(lease), Done)
        platform.exports = False  # the first has shown that a cut model is exported whole
    first, second, whole = platform.registry.versions
    seen = [version.environment["bottleneck"] for version in (first, second)]
    assert [(one["layer"], one["computed"], one["from_cache"]) for one in seen] == [("base", 60, 0), ("base", 0, 60)]
    assert seen[0]["base_digest"] == seen[1]["base_digest"]
    assert "bottleneck" in first.timings

    # As if the base had only been frozen: the sums of a batch are taken in another order.
    ours, plain = (checkpoint.read(tmp_path / "cache" / "model" / str(one.version)).arrays for one in (first, whole))
    assert ours.keys() == plain.keys()
    for path, array in ours.items():
        np.testing.assert_allclose(np.float64(array), np.float64(plain[path]), rtol=1e-4, atol=1e-5, err_msg=path)

    # With one block damaged on disk and the other one gone: the same bits.
    kept = shutil.copytree(tmp_path / "cache/model/.bottleneck", tmp_path / "rebuild-cache/model/.bottleneck")
    damaged, lost = sorted(kept.iterdir())
    damaged.write_bytes(damaged.read_bytes()[:-30])
    lost.unlink()
    found = rebuilt(platform, leases[1], 2)
    assert (found.missing, found.differences) == ((), ())

    # The same numbers in another graph are another base.
    platform.train(platform.lease(_files(source=MODULE.replace("tanh", "relu"))))
    assert platform.registry.versions[-1].environment["bottleneck"]["from_cache"] == 0


@pytest.mark.covers("mode-bottleneck")
@pytest.mark.parametrize(
    ("source", "training", "reason"),
    [
        (MODULE, {"bottleneck": "bass"}, "which is none of the model's layers: base, "),
        (MODULE, {"bottleneck": "dense_1"}, "nothing behind bottleneck dense_1 learns"),
        (MODULE + "\ndef adapt(network, dataset): pass\n", {"bottleneck": "base"}, "module's adapt takes the"),
        (
            ("class Net(keras.Model):\n    def __init__(self):\n        super().__init__()\n"
            "        self.base = keras.layers.Dense(1, name='base')\n"
            "    def call(self, inputs):\n        return self.base(inputs['pair'])\n"
            "inputs = ['pair']\ndef build_model(schema, parameters):\n    return Net()\n"),
            {"bottleneck": "base"},
            "a subclassed model cannot be cut",
        ),
        (
            ("def build_model(schema, parameters):\n    word = keras.Input((), name='word', dtype='string')\n"
            "    ids = keras.layers.StringLookup(vocabulary=['red'], name='ids')(word)\n"
            "    return keras.Model(word, keras.layers.Dense(1)(keras.layers.Embedding(2, 2)(ids)))\n"),
            {"bottleneck": "embedding"},
            "a layer with a lookup table",
        ),
    ],
)  # fmt: skip
def test_a_cut_that_cannot_be_made_fails_the_round_by_a_sentence(
    tmp_path: Path, source: str, training: dict[str, Any], reason: str
) -> None:
    platform = Platform(tmp_path).append(events(20))
    assert reason in platform.refused(_files(source=source, training=training))
