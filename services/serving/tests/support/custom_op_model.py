"""Compiles an operation that TensorFlow does not know and writes a SavedModel that needs it, with the library in it:
`python -m services.serving.tests.support.custom_op_model DIRECTORY`. Needs g++."""

import sys
from pathlib import Path

import tensorflow as tf

from testing import triple_operation


class Triple(tf.Module):
    def __init__(self, library: Path) -> None:
        super().__init__()
        self.triple = tf.load_op_library(str(library)).headrace_triple

    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32, name="x")])
    def __call__(self, x: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"y": self.triple(x=x)}


def main(directory: Path) -> None:
    extra = directory / "assets.extra"
    extra.mkdir(parents=True)
    library = extra / "triple.so"
    triple_operation.build(library)
    tf.saved_model.save(Triple(library), str(directory))
    (extra / "custom_ops.txt").write_text("# Operations of our own\nassets.extra/triple.so\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
