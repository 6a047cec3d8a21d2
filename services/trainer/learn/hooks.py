"""Calls the hooks of a definition (families/hooks.py) and keeps what they remember.

A hook that raises fails the round: in Python with what it raised, in the compiled step by the scope of its operations.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from services.trainer.families.authors_code import called
from services.trainer.families.hooks import HookFailedError, HookSet, Run, Saved
from services.trainer.families.port import Arrays, Losses
from services.trainer.families.reasons import DefinitionFailedError, blame_definition, describe

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SCOPE = "hook."


class RunningHooks:
    """All of a round's, in the order in which they are named; the module's come first.

    Args:
        is_chief: of the round's processes, this one calls what is for the chief alone.
    """

    def __init__(self, sets: Sequence[HookSet], network: keras.Model, *, is_chief: bool) -> None:
        self._all = [_Running(hook_set, network) for hook_set in sets if is_chief or not hook_set.chief_only]
        self.state = {state.name: state for hooks in self._all for state in hooks.state.values()}

    def begin(self, optimizer: keras.optimizers.Optimizer) -> None:
        """Before anything else is called."""
        for hooks in self._all:
            hooks.begin(optimizer)

    @property
    def has_step_hooks(self) -> bool:
        return any(hooks.has_step_hooks for hooks in self._all)

    def refuse_gradients(self, why: str) -> None:
        """Raises DefinitionFailedError where on_gradients would not be called, or not with the gradients."""
        for hooks in self._all:
            hooks.refuse_gradients(why)

    def on_round_begin(self) -> None:
        for hooks in self._all:
            hooks.call("on_round_begin", hooks.run)

    def before_step(self, features: Any, labels: Any) -> list[Any]:
        """What each of them keeps, for its after_step."""
        return [hooks.before_step(features, labels) for hooks in self._all]

    def on_gradients(self, gradients: list[Any], variables: list[keras.Variable]) -> list[Any]:
        """One for each variable, as the last hook returned them."""
        for hooks in self._all:
            gradients = hooks.on_gradients(gradients, variables)
        return gradients

    def after_step(self, loss: tf.Tensor, kept: list[Any]) -> None:
        for hooks, own in zip(self._all, kept, strict=True):
            hooks.after_step(loss, own)

    @property
    def is_stopped(self) -> bool:
        """on_block has ended the round."""
        return any(hooks.is_stopped for hooks in self._all)

    def on_block(self, losses: Losses) -> None:
        for hooks in self._all:
            hooks.on_block(losses)

    def on_checkpoint(self, arrays: Arrays) -> None:
        for hooks in self._all:
            hooks.on_checkpoint(arrays)

    def after_checkpoint(self, saved: Saved) -> None:
        for hooks in self._all:
            hooks.call("after_checkpoint", saved)

    def on_round_end(self) -> None:
        for hooks in self._all:
            hooks.call("on_round_end", hooks.run)

    def fail_if_at_fault(self, error: tf.errors.OpError) -> None:
        """Raises HookFailedError where an operation of a hook has failed in the compiled step."""
        for hooks in self._all:
            hooks.fail_if_at_fault(error)


class _Running:
    def __init__(self, hooks: HookSet, network: keras.Model) -> None:
        self._functions, self._path, self._network = hooks.functions, hooks.path, network
        self.owner, self._may_stop = hooks.owner, not hooks.chief_only
        self.state = self._variables()
        self.run: Run | None = None

    def begin(self, optimizer: keras.optimizers.Optimizer) -> None:
        self.run = Run(self._network, optimizer, self.state, may_stop=self._may_stop)

    @property
    def has_step_hooks(self) -> bool:
        return not self._functions.keys().isdisjoint(("before_step", "on_gradients", "after_step"))

    def refuse_gradients(self, why: str) -> None:
        if "on_gradients" in self._functions:
            raise DefinitionFailedError(f"{self._path}: {self._named('on_gradients')} is a hook, and {why}")

    def before_step(self, features: Any, labels: Any) -> Any:
        return self._in_step("before_step", self.run, features, labels)

    def on_gradients(self, gradients: list[Any], variables: list[keras.Variable]) -> list[Any]:
        if "on_gradients" not in self._functions:
            return gradients
        found = self._in_step("on_gradients", self.run, list(gradients), list(variables))
        shapes = [tuple(variable.shape) for variable in variables]
        if not isinstance(found, list | tuple) or [_shape_of(gradient) for gradient in found] != shapes:
            got = (
                [_shape_of(gradient) for gradient in found] if isinstance(found, list | tuple) else type(found).__name__
            )
            raise HookFailedError(
                f"{self._path}: on_gradients must return a list with a gradient for each variable, of shapes {shapes}, "
                f"got {got}"
            )
        return list(found)

    def after_step(self, loss: tf.Tensor, kept: Any) -> None:
        self._in_step("after_step", self.run, loss, kept)

    @property
    def is_stopped(self) -> bool:
        return self.run is not None and self.run.is_stopped

    def on_block(self, losses: Losses) -> None:
        assert self.run is not None, "begin comes first"
        self.run.is_between_blocks = True
        self.call("on_block", self.run, losses)
        self.run.is_between_blocks = False
        if getattr(self._network, "stop_training", False):
            raise HookFailedError(
                f"{self._path}: stop_training is for Keras's fit; on_block ends a round by run.stop()"
            )

    def on_checkpoint(self, arrays: Arrays) -> None:
        if "on_checkpoint" in self._functions:
            self.call("on_checkpoint", {path: _read_only(array) for path, array in arrays.items()})

    def fail_if_at_fault(self, error: tf.errors.OpError) -> None:
        found = re.findall(re.escape(self._scope) + r"(\w+?)(?:_\d+)?/", str(error.message))
        if found:
            raise HookFailedError(f"{self._path}: {self._named(found[-1])}: {describe(error)}") from error

    def _variables(self) -> dict[str, keras.Variable]:
        initial = self.call("hook_state", self._network)
        if initial is None:
            return {}
        if not isinstance(initial, Mapping) or not all(
            isinstance(name, str) and _NAME.fullmatch(name) for name in initial
        ):
            raise HookFailedError(
                f"{self._path}: hook_state must return a dict of name to number or array, names of letters, digits, _"
            )
        return {name: self._variable(name, value) for name, value in initial.items()}

    def _variable(self, name: str, value: Any) -> keras.Variable:
        array = np.asarray(value)
        if array.dtype.kind not in "biuf":
            raise HookFailedError(f"{self._path}: hook_state: {name} must be a number or an array, got {value!r}")
        if isinstance(value, float | list | tuple) and array.dtype.kind == "f":
            array = array.astype(np.float32)  # Python's floats, as in TensorFlow
        return keras.Variable(array, dtype=str(array.dtype), trainable=False, name=self._named(name))

    def _named(self, name: str) -> str:
        return f"{self.owner}.{name}" if self.owner else name

    @property
    def _scope(self) -> str:
        return f"{_SCOPE}{self.owner}." if self.owner else _SCOPE

    def call(self, name: str, *arguments: Any) -> Any:
        function = self._functions.get(name)
        if function is None:
            return None
        with self._blamed(name):
            return called(function, *arguments)

    def _in_step(self, name: str, *arguments: Any) -> Any:
        if name not in self._functions:
            return None
        with tf.name_scope(f"{self._scope}{name}"):
            return self.call(name, *arguments)

    @contextmanager
    def _blamed(self, name: str) -> Iterator[None]:
        try:
            with blame_definition(self._path, doing=self._named(name)):
                yield
        except DefinitionFailedError as error:
            raise HookFailedError(str(error)) from error.__cause__


def _shape_of(gradient: Any) -> tuple[int | None, ...] | None:
    if isinstance(gradient, tf.IndexedSlices):
        shape = gradient.dense_shape
        return None if shape is None else tuple(tf.get_static_value(shape).tolist())
    return tuple(gradient.shape) if tf.is_tensor(gradient) else None


def _read_only(array: Any) -> Any:
    view = np.asarray(array).view()
    view.flags.writeable = False
    return view
