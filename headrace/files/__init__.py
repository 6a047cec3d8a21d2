"""Files that a user holds: definitions, events, rows, logs of predictions."""
