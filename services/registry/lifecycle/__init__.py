"""What people decide about a model or a stream as a whole."""
