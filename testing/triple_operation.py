"""An operation that TensorFlow does not know, HeadraceTriple, as a library: y = 3 x. Needs g++ and TensorFlow."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from testing.shared_folder import filled_once

_GUIDE = Path(__file__).parents[1] / "docs/guide/keras.md"

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


@pytest.fixture(scope="session")
def triple_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compiled once a run: that takes a compiler 10 s. The test has the mark `needs`."""
    folder = filled_once(tmp_path_factory, "triple_operation", lambda folder: _build(folder / "triple.so"))
    return folder / "triple.so"


def _build(library: Path) -> None:
    """By the commands of the guide, without what costs time."""
    library.with_suffix(".cc").write_text(_SOURCE)
    lines = _GUIDE.read_text().splitlines()
    recipe = "\n".join(line for line in lines if line.startswith(("flags=$(python", "g++ ")))
    recipe = recipe.replace("zero_out", library.stem).replace(" -O2 ", " -w -O0 ")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    subprocess.run(["bash", "-ec", recipe], cwd=library.parent, check=True, env={**os.environ, "PATH": path})
