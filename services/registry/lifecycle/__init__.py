"""People's decisions about a model or a stream as a whole."""
