"""From a request to log records (accept.py is the way through): partitions, chunks, writers, the bound on memory."""
