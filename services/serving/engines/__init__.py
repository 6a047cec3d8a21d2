"""Engines compute a SavedModel's signatures: TensorFlow, or an engine that it was converted to. `choice` picks."""
