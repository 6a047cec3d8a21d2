"""Serving: TensorFlow Serving's doors, a queue in Redis, and a runner process per program."""
