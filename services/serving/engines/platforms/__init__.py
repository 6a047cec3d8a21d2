"""Platforms: what turns a version's files into a model that answers. `registry` finds the one that a model names."""
