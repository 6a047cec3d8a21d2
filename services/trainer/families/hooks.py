"""Hooks: functions of a definition's module, or methods of the classes that training.hooks names, that a round calls
while it trains.

    hook_state(network) -> {name: number or array}   what hooks remember: each a variable, at path hook/<name>
    on_round_begin(run)                              once in a round, before its first step
    before_step(run, features, labels)               in the compiled step: before a batch; returns tensors to keep
    on_gradients(run, gradients, variables)          in the compiled step: with the gradients of the whole batch;
                                                     returns those that the optimizer takes
    after_step(run, loss, kept)                      in the compiled step: after it, with what before_step returned
    on_block(run, losses)                            after a block, with the loss of each of its steps
    on_checkpoint(arrays)                            a resume point, or the round's result, is about to be written
    after_checkpoint(saved)                          it is written: saved.kind, saved.step, saved.paths
    on_round_end(run)                                once in a round, after its last step

`run` is a Run; on_block may call run.stop(). A class may be a Keras callback (CallbackHooks).
What a hook assigns to variables is part of checkpoint, resume and rebuild; what it keeps elsewhere is
lost with the process. on_checkpoint is called when time has come, so it gets copies and can change nothing.
"""

import inspect
import re
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

from common.definition.hooks import HookClass
from common.suggestions import did_you_mean
from services.trainer.families.reasons import DefinitionFailedError, blame_definition

_CALLED = ("on_train_begin", "on_epoch_end", "on_train_end")
HOOKS: Mapping[str, tuple[str, ...]] = {
    "hook_state": ("network",),
    "on_round_begin": ("run",),
    "before_step": ("run", "features", "labels"),
    "on_gradients": ("run", "gradients", "variables"),
    "after_step": ("run", "loss", "kept"),
    "on_block": ("run", "losses"),
    "on_checkpoint": ("arrays",),
    "after_checkpoint": ("saved",),
    "on_round_end": ("run",),
}
_ELSEWHERE: Mapping[str, str] = {
    **dict.fromkeys(("on_train_begin", "on_epoch_begin", "after_create_session"), "on_round_begin"),
    **dict.fromkeys(("on_train_end", "on_epoch_end"), "on_round_end"),
    **dict.fromkeys(("on_batch_begin", "on_train_batch_begin", "before_run", "before_batch"), "before_step"),
    **dict.fromkeys(("on_batch_end", "on_train_batch_end", "after_run", "after_batch"), "after_step"),
    "before_save": "on_checkpoint",
    "after_save": "after_checkpoint",
    **dict.fromkeys(("apply_gradients", "process_gradients", "after_gradients"), "on_gradients"),
}
"""The nearest hook to what Keras's callbacks and session hooks call theirs."""


class HookFailedError(DefinitionFailedError):
    """A hook raised; no example is at fault."""


@dataclass
class Run:
    """What a hook works with.

    Attributes:
        optimizer: counts the steps, in `iterations`.
        state: the variables that hook_state asked for, by name.
        is_between_blocks, is_stopped: of on_block, and whether one has called `stop`.
    """

    network: keras.Model
    optimizer: keras.optimizers.Optimizer
    state: Mapping[str, keras.Variable]
    is_between_blocks: bool = False
    is_stopped: bool = False
    may_stop: bool = True

    def stop(self) -> None:
        """Ends the round behind the block that on_block was called for; what the round has not come to is left out."""
        if not self.may_stop:
            raise RuntimeError("a hook of the chief alone cannot end the round: the other processes would go on")
        if not self.is_between_blocks:
            raise RuntimeError(
                "run.stop() is for on_block, since a round ends behind a block and before_step and after_step are "
                "traced once; let a step note in run.state what on_block looks at"
            )
        self.is_stopped = True


@dataclass(frozen=True)
class Saved:
    """What after_checkpoint hears of.

    Attributes:
        kind: `resume_point`, which the registry holds, or `result`, the version's files on the trainer's disk.
        paths: of its arrays.
    """

    kind: str
    step: int
    paths: tuple[str, ...]


@dataclass(frozen=True)
class HookSet:
    """What one module or one class has.

    Attributes:
        functions: by name.
        path: of the file.
        owner: the class; empty for a module's functions.
        chief_only: only the chief calls them.
    """

    functions: Mapping[str, Callable[..., Any]]
    path: str
    owner: str = ""
    chief_only: bool = False


def hooks_of_class(named: HookClass, module: types.ModuleType) -> HookSet:
    """Of a new instance of the class, which the module of its file has. Raises DefinitionFailedError: there is no such
    class, it cannot be made, or as `hooks_of` says."""
    made = getattr(module, named.name, None)
    if not inspect.isclass(made):
        raise DefinitionFailedError(f"{named.file}: training.hooks names its class {named.name}, which it lacks")
    with blame_definition(named.file, doing=named.name):
        hook = made(**named.arguments)
    if isinstance(hook, keras.callbacks.Callback):
        if named.chief_only:
            raise DefinitionFailedError(f"{named.file}: {named.name} is a Keras callback, which every process calls")
        hook = CallbackHooks(hook, f"{named.file}: {named.name}")
    methods = {name: getattr(hook, name) for name in dir(hook) if not name.startswith("_")}
    functions = hooks_of(methods, f"{named.file}: {named.name}")
    if not functions:
        raise DefinitionFailedError(f"{named.file}: {named.name} has none of the hooks {', '.join(HOOKS)}")
    if named.chief_only and (wrong := sorted({"hook_state", "on_gradients"} & set(functions))):
        raise DefinitionFailedError(
            f"{named.file}: {named.name} is for the chief alone, and {wrong[0]} changes what all processes compute with"
        )
    return HookSet(functions, named.file, named.name, named.chief_only)


def hooks_of(named: Mapping[str, object], path: str) -> dict[str, Callable[..., Any]]:
    """Those among a module's names, or a hook's methods. Raises DefinitionFailedError: one is no function, takes other
    arguments, or has a name that nothing calls."""
    found: dict[str, Callable[..., Any]] = {}
    for name, value in named.items():
        if name in HOOKS:
            found[name] = _checked(name, value, path)
        elif (inspect.isfunction(value) or inspect.ismethod(value)) and (name in _ELSEWHERE or name.startswith("on_")):
            known = ", ".join(HOOKS)
            meant = f"; did you mean {_ELSEWHERE[name]}?" if name in _ELSEWHERE else did_you_mean([name], [*HOOKS])
            raise DefinitionFailedError(f"{path}: nothing calls {name}(); the hooks are {known}{meant}")
    return found


def check_every_function_is_used(
    module: types.ModuleType, path: str, sources: Iterable[str], known: Sequence[str]
) -> None:
    """Refuses a function that the module never mentions again and whose name is nearly one of `known` or a hook's.

    Args:
        sources: the definition's Python files.

    Raises:
        DefinitionFailedError: nothing would call it.
    """
    names = [name for name in (*known, *HOOKS) if not hasattr(module, name)]
    text = "\n".join(sources)
    for name, value in vars(module).items():
        if not inspect.isfunction(value) or value.__module__ != module.__name__ or name in (*known, *HOOKS):
            continue
        meant = did_you_mean([name], names)
        if meant and len(re.findall(rf"\b{re.escape(name)}\b", text)) == 1:
            raise DefinitionFailedError(f"{path}: nothing calls {name}(){meant}")
    if "callbacks" in vars(module) and len(re.findall(r"(?<!\.)\bcallbacks\b", text)) == 1:
        raise DefinitionFailedError(
            f"{path}: nothing reads callbacks; what they do, hooks do: {', '.join(HOOKS)}, and model.yaml's "
            f"training.early_stopping and learning rates"
        )


def _checked(name: str, value: object, path: str) -> Callable[..., Any]:
    if not callable(value):
        raise DefinitionFailedError(f"{path}: {name} must be a function, got {type(value).__name__}")
    try:
        inspect.signature(value).bind(*HOOKS[name])
    except TypeError:
        raise DefinitionFailedError(f"{path}: {name} must take ({', '.join(HOOKS[name])})") from None
    return value


class CallbackHooks:
    """A Keras callback's methods as hooks: a round is its training, a block is its epoch.

    on_train_begin     before the round's first step
    on_epoch_end       after a block: its number in the round, which resume points keep, {"loss": mean of its steps}
    on_train_end       after the round's last step

    `self.model.stop_training = True` in on_epoch_end ends the round, as run.stop() does. `self.model.optimizer` is the
    round's, also where model.yaml names it.
    """

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
