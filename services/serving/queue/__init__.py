"""The queue in Redis: both sides of it, its scripts, admission and recovery."""
