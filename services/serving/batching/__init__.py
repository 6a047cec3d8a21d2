"""Many requests, few calls of the model."""
