"""Compiles an operation that TensorFlow does not know and writes a SavedModel that needs it, with the library in it:
`python -m services.serving.tests.support.custom_op_model DIRECTORY`. Needs g++."""

import subprocess
import sys
from pathlib import Path

import tensorflow as tf

SOURCE = """
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
using namespace tensorflow;
REGISTER_OP("HeadraceTriple").Input("x: float").Output("y: float").SetShapeFn(shape_inference::UnchangedShape);
class TripleOp : public OpKernel {
 public:
  explicit TripleOp(OpKernelConstruction* context) : OpKernel(context) {}
  void Compute(OpKernelContext* context) override {
    const Tensor& x = context->input(0);
    Tensor* y = nullptr;
    OP_REQUIRES_OK(context, context->allocate_output(0, x.shape(), &y));
    for (int64_t i = 0; i < x.NumElements(); ++i) y->flat<float>()(i) = 3 * x.flat<float>()(i);
  }
};
REGISTER_KERNEL_BUILDER(Name("HeadraceTriple").Device(DEVICE_CPU), TripleOp);
"""


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
    source, library = directory / "triple.cc", extra / "triple.so"
    source.write_text(SOURCE)
    flags = [*tf.sysconfig.get_compile_flags(), *tf.sysconfig.get_link_flags()]
    subprocess.run(["g++", "-w", "-shared", "-fPIC", "-O0", str(source), "-o", str(library), *flags], check=True)
    tf.saved_model.save(Triple(library), str(directory))
    (extra / "custom_ops.txt").write_text("# Operations of our own\nassets.extra/triple.so\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
