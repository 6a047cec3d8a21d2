"""What the SavedModels of same_program_models.py answer; without TensorFlow."""

COUNT = 9
"""Folders 1 to 9 are versions of one program that answer as what they are called."""
DAMAGED = ("missing", "shape", "dtype", "flipped", "cut", "refusing")
"""Folders of the same program that no runner may take."""


def expected(version: int, x: float) -> float:
    """What version `version` answers to a row (x, 0, 0)."""
    return x + 1100.0 * version
