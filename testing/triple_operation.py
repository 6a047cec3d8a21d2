"""An operation that TensorFlow does not know, HeadraceTriple, as a library: y = 3 x. Needs g++ and TensorFlow."""

import subprocess
from pathlib import Path

_SOURCE = """
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


def build(library: Path) -> None:
    import tensorflow as tf

    source = library.with_suffix(".cc")
    source.write_text(_SOURCE)
    flags = [*tf.sysconfig.get_compile_flags(), *tf.sysconfig.get_link_flags()]
    subprocess.run(["g++", "-w", "-shared", "-fPIC", "-O0", str(source), "-o", str(library), *flags], check=True)
