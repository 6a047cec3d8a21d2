"""How a user's files are told from all others in a trace; no TensorFlow here, since control reads traces too."""

PACKAGE_PREFIX = "headrace_definition_"
"""A definition's files are imported below a package of this name."""
