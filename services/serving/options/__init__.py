"""Settings and their sources: variables, flags, configuration files, model files."""
