"""Whether there is a GPU, for what must not import TensorFlow to ask."""

from pathlib import Path


def has_gpu() -> bool:
    """Whether the machine shows an NVIDIA device; TensorFlow may still be a build without CUDA."""
    return any(Path("/dev").glob("nvidia[0-9]*"))
