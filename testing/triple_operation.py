"""An operation that TensorFlow does not know, HeadraceTriple, as a library: y = 3 x. Needs g++ and TensorFlow, whose C
API compiles in a second where its C++ headers take ten."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from testing.shared_folder import filled_once

_GUIDE = Path(__file__).parents[1] / "docs/guide/keras.md"

_SOURCE = """
#include "tensorflow/c/kernels.h"
#include "tensorflow/c/ops.h"

static void Shape(TF_ShapeInferenceContext* context, TF_Status* status) {
  TF_ShapeHandle* shape = TF_NewShapeHandle();
  TF_ShapeInferenceContextGetInput(context, 0, shape, status);
  TF_ShapeInferenceContextSetOutput(context, 0, shape, status);
  TF_DeleteShapeHandle(shape);
}
static void Compute(void*, TF_OpKernelContext* context) {
  TF_Status* status = TF_NewStatus();
  TF_Tensor* x = nullptr;
  TF_GetInput(context, 0, &x, status);
  int64_t sizes[8];
  for (int i = 0; i < TF_NumDims(x); ++i) sizes[i] = TF_Dim(x, i);
  TF_Tensor* y = TF_AllocateOutput(context, 0, TF_FLOAT, sizes, TF_NumDims(x), TF_TensorByteSize(x), status);
  for (int64_t i = 0; i < TF_TensorElementCount(x); ++i)
    static_cast<float*>(TF_TensorData(y))[i] = 3 * static_cast<float*>(TF_TensorData(x))[i];
  TF_DeleteTensor(x);
  TF_DeleteTensor(y);
  TF_DeleteStatus(status);
}
__attribute__((constructor)) static void Register() {
  TF_Status* status = TF_NewStatus();
  TF_OpDefinitionBuilder* operation = TF_NewOpDefinitionBuilder("HeadraceTriple");
  TF_OpDefinitionBuilderAddInput(operation, "x: float");
  TF_OpDefinitionBuilderAddOutput(operation, "y: float");
  TF_OpDefinitionBuilderSetShapeInferenceFunction(operation, Shape);
  TF_RegisterOpDefinition(operation, status);
  TF_KernelBuilder* kernel = TF_NewKernelBuilder("HeadraceTriple", "CPU", nullptr, Compute, nullptr);
  TF_RegisterKernelBuilder("HeadraceTriple", kernel, status);
  TF_DeleteStatus(status);
}
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
