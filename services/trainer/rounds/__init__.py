"""One round in its process, from its assignment to its last message."""
