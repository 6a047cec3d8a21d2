"""From a request to log records: chunks, writers, the bound on memory, dead letters."""
