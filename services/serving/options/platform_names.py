"""The platforms that a model may name here. Imports no platform, so that doors and manager may use it."""

from importlib.metadata import EntryPoint, entry_points

TENSORFLOW, TFLITE = "tensorflow", "tflite"
"""Are there always; tflite needs a package (docs/guide/engines.md)."""
_GROUP = "headrace.platforms"


def plugins() -> dict[str, EntryPoint]:
    """{name: entry point} of the platforms that are installed beside TensorFlow."""
    return {entry.name: entry for entry in entry_points(group=_GROUP)}


def platform_names() -> frozenset[str]:
    return frozenset({TENSORFLOW, TFLITE, *plugins()})
