"""A version as TensorFlow's own object, in this process. The only place of headrace that needs TensorFlow."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common.errors import InvalidInput


def load(directory: Path, files: Sequence[Path]) -> Any:
    """What a version's files, in the directory, hold: the Keras model of the one `*.keras`, else the SavedModel.

    Raises:
        InvalidInput: TensorFlow is not installed, or the files hold neither.
    """
    try:
        import tensorflow as tf
    except ImportError as error:
        raise InvalidInput("load_model needs TensorFlow: pip install tensorflow-cpu") from error
    found = [path for path in files if path.suffix == ".keras"]
    if len(found) == 1:
        return tf.keras.models.load_model(found[0], compile=False)
    if directory / "saved_model" / "saved_model.pb" not in files:
        raise InvalidInput(f"{directory} holds no saved_model/saved_model.pb, and {len(found)} Keras files, not one")
    return tf.saved_model.load(str(directory / "saved_model"))
