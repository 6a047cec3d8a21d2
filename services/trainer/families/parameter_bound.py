"""How many parameters a model may have: held against a layer's weights before they take memory."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import keras
import tensorflow as tf

from services.trainer.families.reasons import DefinitionFailedError

_FLOAT_BYTES = 4


@contextmanager
def at_most(most: int) -> Iterator[None]:
    """The variables of what is built inside have at most `most` parameters together.

    The weights of a layer are refused before they are made; of a variable that no layer makes the size is known when it
    is there. While it lasts, Keras's Layer.add_weight is this one, for the whole process. Raises DefinitionFailedError:
    it asks for more. Also where the definition's code caught that."""
    refused: list[DefinitionFailedError] = []
    total = 0

    def check(count: int, name: object) -> None:
        if total + count <= most:
            return
        gigabytes = (total + count) * _FLOAT_BYTES / 1e9
        sentence = (
            f"the model would have {total + count:,} parameters or more ({gigabytes:,.1f} GB, "
            f"{name or 'the last variable'} alone {count:,}), at most {most:,} are taken (TRAINER_MAX_PARAMETERS)"
        )
        refused.append(DefinitionFailedError(sentence))
        raise refused[0]

    def create(make: Any, **given: Any) -> Any:
        nonlocal total
        made = make(**given)
        count = made.shape.num_elements() or 0
        check(count, given.get("name"))
        total += count
        return made

    add_weight = keras.layers.Layer.add_weight

    def add_checked(layer: keras.layers.Layer, shape: Any = None, *rest: Any, **named: Any) -> Any:
        sizes = (shape,) if isinstance(shape, int) else tuple(shape or ())
        if all(isinstance(size, int) for size in sizes):
            check(math.prod(sizes), f"{layer.name}/{named.get('name') or 'variable'}")
        return add_weight(layer, shape, *rest, **named)

    try:
        keras.layers.Layer.add_weight = add_checked
        with tf.variable_creator_scope(create):
            yield
    except Exception as error:  # Keras and the definition's code wrap what is raised below them
        if not refused:
            raise
        raise refused[0] from error
    finally:
        keras.layers.Layer.add_weight = add_weight
    if refused:
        raise refused[0]
