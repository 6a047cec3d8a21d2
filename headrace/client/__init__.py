"""The Python client: the platform's calls and predictions."""
