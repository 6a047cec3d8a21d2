"""What Headrace needs of Keras and Keras does not promise: every private attribute is read and written here.

tests/test_keras_internals.py holds each against what Keras does in public: an upgrade says which one has changed.
"""

import math
import random
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras.src.backend.common import global_state
from keras.src.utils.rng_utils import GLOBAL_RANDOM_SEED

Variables = list[keras.Variable]


# names and generators


def start_from_seed(seed: int) -> None:
    """`keras.utils.clear_session` and `set_random_seed`, but for what both do to TensorFlow: its kernels stay, and its
    generator is not seeded."""
    global_state.GLOBAL_STATE_TRACKER = threading.local()
    global_state.GLOBAL_SETTINGS_TRACKER = threading.local()
    global_state.set_global_attribute(GLOBAL_RANDOM_SEED, seed)
    random.seed(seed)
    np.random.seed(seed)


# variables


SHARED_FROM_BYTES = 1024 * 1024


def without_copy(variable: Any) -> Any:
    """The variable, Keras's or TensorFlow's. A big one is read and assigned to without a copy from here until its rows
    are updated or gathered: from then on TensorFlow copies it at each, and at that once, where its value is held
    elsewhere."""
    value = variable if isinstance(variable, tf.Variable) else variable.value
    is_here = isinstance(value, tf.Variable) and value.shape.is_fully_defined() and value.device.endswith("CPU:0")
    if is_here and math.prod(value.shape) >= SHARED_FROM_BYTES // 4:
        tf.raw_ops.DisableCopyOnRead(resource=value.handle)
    return variable


def name_variable(variable: keras.Variable, path: str) -> None:
    """Sets `variable.path`, after which an optimizer names its slots."""
    variable._path = path


# layers and networks


def layers_of(network: keras.Model, *, include_self: bool = False) -> list[keras.layers.Layer]:
    """Those in it at any depth, each once."""
    return list(network._flatten_layers(include_self=include_self))


def leave_cudnn(network: keras.Model) -> None:
    """LSTM and GRU layers that would choose cuDNN where there is a GPU compute as on a CPU: cuDNN's operation has no
    kernel there, so that an export with it answers on GPUs only, and takes no mask but a right-padded one. A layer that
    asks for cuDNN keeps it."""
    for layer in layers_of(network, include_self=True):
        if getattr(layer, "use_cudnn", None) == "auto":
            layer.use_cudnn = False


def weights_of(layer: keras.layers.Layer) -> Variables:
    """The layer's own that gradients are for, also where it is frozen."""
    return list(layer._trainable_variables)


def kernel_of(layer: keras.layers.Layer) -> keras.Variable:
    """The variable itself: `kernel` of a layer with LoRA is a sum."""
    return layer._kernel if hasattr(layer, "_kernel") else layer.kernel


def table_of(layer: keras.layers.Embedding) -> keras.Variable:
    return layer._embeddings


def lookup_of(layer: keras.layers.TextVectorization) -> keras.layers.Layer:
    """The StringLookup that holds its words."""
    return layer._lookup_layer


def is_training(layer: keras.layers.Layer) -> bool:
    """Inside a call: whether it trains."""
    return bool(layer._get_call_context().training)


@contextmanager
def taking_state(layer: keras.layers.Layer) -> Iterator[None]:
    """Inside, a built layer takes `add_weight`."""
    layer._tracker.unlock()
    try:
        yield
    finally:
        layer._tracker.lock()


def nodes_of(network: keras.Model) -> list[Any] | None:
    """The calls of a functional or sequential network, from its inputs on; None for any other network."""
    functional = getattr(network, "_functional", None) if isinstance(network, keras.Sequential) else network
    by_depth = getattr(functional, "_nodes_by_depth", None)
    return None if by_depth is None else [node for depth in sorted(by_depth, reverse=True) for node in by_depth[depth]]


def node_of(tensor: keras.KerasTensor) -> Any:
    """The call that gave it."""
    operation, index, _ = tensor._keras_history
    return operation._inbound_nodes[index]


def has_compiled_metrics(network: keras.Model) -> bool:
    return getattr(network, "_compile_metrics", None) is not None


def asks_for_xla(network: keras.Model) -> bool:
    """compile(jit_compile=True), also where Keras puts it back with a warning: under determinism, as in every round,
    `network.jit_compile` is False. "auto" asks for nothing then."""
    return bool(network._compile_config.config["jit_compile"])


# optimizers


def calls_of(optimizer: keras.optimizers.Optimizer) -> keras.Variable:
    """int: how often it was given gradients; `iterations` counts only those that it applied."""
    return optimizer._iterations


def taught_by(optimizer: keras.optimizers.Optimizer) -> Variables:
    """In the order of its slots."""
    return list(optimizer._trainable_variables)


def place_of(optimizer: keras.optimizers.Optimizer, variable: Any) -> int:
    """Of the variable in `taught_by`."""
    return int(optimizer._get_variable_index(variable))


def own_variables(optimizer: keras.optimizers.Optimizer) -> Variables:
    """Without those of an optimizer inside it."""
    return list(optimizer._variables)


def averages_of(optimizer: keras.optimizers.Optimizer) -> Variables:
    """The moving averages (use_ema), in the order of `taught_by`."""
    return list(optimizer._model_variables_moving_average)


def momentums_of(optimizer: keras.optimizers.ScheduleFreeAdamW) -> Variables:
    return list(optimizer._momentums)


def rate_of(optimizer: keras.optimizers.Optimizer) -> object:
    """The learning rate as it was given: a schedule stays a schedule."""
    return getattr(optimizer, "_learning_rate", None)


def decays(optimizer: keras.optimizers.Optimizer, variable: keras.Variable) -> bool:
    """Whether its weight decay is of this variable."""
    return bool(optimizer._use_weight_decay(variable))


def excludes_from_decay(optimizer: keras.optimizers.Optimizer) -> bool:
    return hasattr(optimizer, "_exclude_from_weight_decay")


def decay_by(optimizer: keras.optimizers.Optimizer, decay: Callable[[Iterable[keras.Variable]], None]) -> None:
    """Has it decay weights so."""
    optimizer._apply_weight_decay = decay


def clip_by(optimizer: keras.optimizers.Optimizer, clip: Callable[[Sequence[Any]], list[Any]]) -> None:
    """Replaces the optimizer's own clipping of gradients."""
    optimizer._clip_gradients = clip
