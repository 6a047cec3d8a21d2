"""Equal rounds give equal weights: one place for seeds, orders and thread counts."""

import keras
import numpy as np
import tensorflow as tf
from keras.src.random.seed_generator import global_seed_generator
from numpy.typing import NDArray

from services.trainer import keras_internals


def configure(*, intra_op_threads: int, inter_op_threads: int) -> None:
    """Once per process, before TensorFlow runs its first op. Sums depend on how many threads share them."""
    tf.config.threading.set_intra_op_parallelism_threads(intra_op_threads)
    tf.config.threading.set_inter_op_parallelism_threads(inter_op_threads)
    be_exact()


def be_exact() -> None:
    """Operations give the same bits each time, and a GPU multiplies whole float32 numbers: with TensorFloat-32,
    TensorFlow's default, products keep 10 bits of the fraction, and a replica on CPUs would not answer as the model was
    judged."""
    tf.config.experimental.enable_op_determinism()
    tf.config.experimental.enable_tensor_float_32_execution(False)


def start_from_seed(seed: int, *, keeps_kernels: bool = False) -> keras.Variable:
    """Forgets Keras's name counters and seeds every generator, so that a model built now is the same every time.

    Args:
        keeps_kernels: for a model of layers that draw by Keras alone. TensorFlow's own generator is not seeded, which
            would end the kernels of every traced function in the process: the next step took 0.4 s for new ones.

    Returns:
        The state of Keras's own generator, which layers without a generator draw from; it belongs to the model.
    """
    if keeps_kernels:
        keras_internals.start_from_seed(seed % 2**32)
    else:
        keras.utils.clear_session(free_memory=False)
        keras.utils.set_random_seed(seed % 2**32)
    return global_seed_generator().state


def block_order(seed: int, *, pass_index: int, block_index: int, count: int) -> NDArray[np.int64]:
    """The order in which a block's examples are taken: a permutation of 0..count-1, Philox keyed by all three."""
    key = [seed % 2**64, pass_index << 32 | block_index]
    return np.random.Generator(np.random.Philox(key=np.array(key, np.uint64))).permutation(count)


def drawing(seed: int, *, pass_index: int, block_index: int) -> np.random.Generator:
    """Draws that do not depend on how many `block_order` has made."""
    key = np.array([seed % 2**64, pass_index << 32 | block_index], np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=np.array([0, 0, 0, 1], np.uint64)))


def group_batches(
    groups: NDArray[np.int64], batch_size: int, *, seed: int, pass_index: int, block_index: int
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """An order of rows in which those of a group stand together, groups as `block_order` puts them; and bounds between
    whole groups: as many as go into batch_size rows, one at least.

    Args:
        groups: [rows], which group each row is of.
    """
    _, codes, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    turns = block_order(seed, pass_index=pass_index, block_index=block_index, count=len(sizes))
    turn_of = np.empty(len(sizes), np.int64)
    turn_of[turns] = np.arange(len(sizes))
    bounds, end = [0], 0
    for size in sizes[turns].tolist():
        if end + size - bounds[-1] > batch_size and end > bounds[-1]:
            bounds.append(end)
        end += size
    return np.argsort(turn_of[codes], kind="stable"), np.array([*bounds, end], np.int32)


def batch_bounds(count: int, batch_size: int, *, is_fixed: bool = False) -> NDArray[np.int32]:
    """Cuts 0..count into the fewest batches of at most batch_size that differ by at most one example.

    No runt at a block's end, nothing to carry over into the next block.

    Args:
        is_fixed: all batches but the last are full instead; what the last one lacks is filled up later.

    Returns:
        batches + 1 increasing bounds; [0] when there is nothing.
    """
    batches = -(-count // batch_size)
    if is_fixed:
        return np.minimum(np.arange(batches + 1) * batch_size, count).astype(np.int32)
    return np.array([count * index // max(batches, 1) for index in range(batches + 1)], np.int32)
