"""Platforms turn a version's files into a model that answers. `registry` finds the platform that a model names."""
