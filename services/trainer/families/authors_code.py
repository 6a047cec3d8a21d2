"""Calls what the author of a definition wrote: its Python may branch and loop over tensors in a compiled step.

AutoGraph rewrites such Python. Begun at the outermost function it rewrites every function of ours on the way, half the
CPU time of a process's first round; so graphs are made without it, and it begins where the module is called.
"""

from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf


def called(function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """What the function returns; where a graph is made, AutoGraph rewrites the function first, and what it calls."""
    call = _called if tf.executing_eagerly() else _rewritten
    return call(function, arguments, named)


def _called(function: Callable[..., Any], arguments: tuple[Any, ...], named: Mapping[str, Any]) -> Any:
    return function(*arguments, **named)


_rewritten = tf.__internal__.autograph.tf_convert(
    _called, tf.__internal__.autograph.control_status_ctx(), user_requested=True
)
