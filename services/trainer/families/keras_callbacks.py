"""A Keras callback as a hook: a round is its training, a block is its epoch.

    on_train_begin     before the round's first step
    on_epoch_end       after a block: its number in the round, {"loss": mean of its steps}
    on_train_end       after the round's last step

`self.model.stop_training = True` in on_epoch_end ends the round, as run.stop() does. `self.model.optimizer` is the
round's, also where model.yaml names it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np

from services.trainer.families.reasons import DefinitionFailedError

_CALLED = ("on_train_begin", "on_epoch_end", "on_train_end")


class CallbackHooks:
    """The methods that families/hooks.py calls. The number of the block is kept in resume points."""

    def __init__(self, callback: keras.callbacks.Callback, place: str) -> None:
        """Raises DefinitionFailedError: it has a method that nothing would call, or none that something does."""
        kind, base = type(callback), keras.callbacks.Callback
        own = [name for name in dir(base) if name.startswith("on_") and getattr(kind, name) is not getattr(base, name)]
        unused = [name for name in own if name not in _CALLED]
        if unused or not own:
            raise DefinitionFailedError(
                f"{place} is a Keras callback with {', '.join(unused) or 'no method'}; a round calls "
                f"{', '.join(_CALLED)}, and a hook's before_step and after_step around a batch"
            )
        self._callback = callback

    def hook_state(self, network: keras.Model) -> dict[str, int]:
        self._callback.set_model(network)
        self._callback.set_params({})
        return {"block": 0}

    def on_round_begin(self, run: Any) -> None:
        run.state["block"].assign(0)
        with _optimizer_of(run):
            self._callback.on_train_begin({})

    def on_block(self, run: Any, losses: Any) -> None:
        with _optimizer_of(run):
            self._callback.on_epoch_end(int(run.state["block"]), {"loss": float(np.mean(losses))})
        run.state["block"].assign_add(1)
        if getattr(run.network, "stop_training", False):
            run.network.stop_training = False
            run.stop()

    def on_round_end(self, run: Any) -> None:
        with _optimizer_of(run):
            self._callback.on_train_end({})


@contextmanager
def _optimizer_of(run: Any) -> Iterator[None]:
    """Lends the network its optimizer where it has compiled none: TensorFlow would export an attribute that stays."""
    attributes = vars(run.network)
    is_lent = getattr(run.network, "optimizer", None) is None
    if is_lent:
        attributes["optimizer"] = run.optimizer
    try:
        yield
    finally:
        if is_lent:
            del attributes["optimizer"]
