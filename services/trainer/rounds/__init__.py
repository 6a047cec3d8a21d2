"""One round from its lease to its end: the attempt, its process, resume points, rebuilds."""
