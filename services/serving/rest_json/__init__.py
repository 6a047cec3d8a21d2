"""JSON to arrays and arrays to JSON, by TensorFlow Serving's rules."""
