"""Writes a SavedModel that needs an operation that TensorFlow does not know, with its library in it:
`python -m services.serving.tests.support.custom_op_model DIRECTORY LIBRARY` (testing/triple_operation.py has one)."""

import shutil
import sys
from pathlib import Path

import tensorflow as tf


class Triple(tf.Module):
    def __init__(self, library: Path) -> None:
        super().__init__()
        self.triple = tf.load_op_library(str(library)).headrace_triple

    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32, name="x")])
    def __call__(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"y": self.triple(x=x)}


def main(directory: Path, library: Path) -> None:
    extra = directory / "assets.extra"
    extra.mkdir(parents=True)
    shutil.copy(library, extra)
    tf.saved_model.save(Triple(library), str(directory))
    (extra / "custom_ops.txt").write_text("# Operations of our own\nassets.extra/triple.so\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
