"""A bad version comes and goes by itself."""
