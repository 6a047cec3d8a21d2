"""The event log: one port (base.py), two adapters (Kafka, local segment files), one record format (tfrecord.py)."""
