"""Ingest: events in over HTTP or gRPC, checked, framed as TFRecords, answered when the log has them."""
