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


def as_keras(loaded: Any) -> Any:
    """What `load` gave as a Keras model: itself where it is one, else a layer that calls the SavedModel's
    serving_default, from a mapping of inputs to one of outputs, by name. The layer has no weights to train."""
    import tensorflow as tf

    if isinstance(loaded, tf.keras.Model):
        return loaded

    class Served(tf.keras.layers.Layer):  # type: ignore[misc]  # TensorFlow has no types
        def call(self, inputs: Any) -> Any:
            return loaded.signatures["serving_default"](**inputs)  # the whole, whose variables live as long as it does

    _, wanted = loaded.signatures["serving_default"].structured_input_signature
    inputs = {
        name: tf.keras.Input(shape=spec.shape[1:], dtype=spec.dtype.name, name=name) for name, spec in wanted.items()
    }
    return tf.keras.Model(inputs, Served(name="served", autocast=False)(inputs))
