"""The package name of a user's files, by which traces show them; no TensorFlow here, since control reads traces too."""

PACKAGE_PREFIX = "headrace_definition_"
"""A definition's files are imported below a package of this name."""
