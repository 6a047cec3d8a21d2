"""A version as TensorFlow's own object, in this process. The only place of headrace that needs TensorFlow."""

from pathlib import Path
from typing import Any

from common.errors import InvalidInput


def load_saved_model(directory: Path) -> Any:
    """What tf.saved_model.load gives: `.signatures["serving_default"](feature=tensor, ...)`.

    Raises:
        InvalidInput: TensorFlow is not installed.
    """
    try:
        import tensorflow as tf
    except ImportError as error:
        raise InvalidInput("load_model needs TensorFlow: pip install tensorflow-cpu") from error
    return tf.saved_model.load(str(directory))
