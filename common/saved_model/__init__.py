"""Reads a SavedModel without TensorFlow: tags, signatures, operations, variables."""
