"""Where models come from: a registry, or folders that a configuration names."""
