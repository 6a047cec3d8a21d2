"""What can be set, and where it comes from: variables, flags, configuration files, model files."""
