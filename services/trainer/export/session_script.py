"""A script of TensorFlow 1, unmodified: `python -m services.trainer.export.session_script SCRIPT ARGUMENT...`.

`import tensorflow` is its compat.v1 there, without what TensorFlow 2 changed: graphs, sessions and placeholders.
What the script prints is printed. `tf.contrib` is gone from every release of TensorFlow 2.
"""

import os
import runpy
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
import tensorflow as tf


def main() -> None:
    script, *arguments = sys.argv[1:]
    first = tf.compat.v1
    first.disable_v2_behavior()
    sys.modules |= {"tensorflow": first, "tensorflow.compat": tf.compat, "tensorflow.compat.v1": first}
    sys.argv = [script, *arguments]
    sys.path.insert(0, os.path.dirname(os.path.abspath(script)))  # noqa: PTH100, PTH120  # as Python itself does
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main()
