"""What the registry counts, for Prometheus."""

from prometheus_client import Counter, Gauge

UPLOADED_BYTES = Counter("headrace_registry_uploaded_bytes", "Bytes of files received")
DOWNLOADED_BYTES = Counter("headrace_registry_downloaded_bytes", "Bytes of files sent")
ROUNDS_ENDED = Counter("headrace_registry_rounds_ended", "Rounds that ended, by outcome", ["model", "outcome"])
WATCHERS = Gauge("headrace_registry_watchers", "Watchers connected")
COLLECTED_BYTES = Counter("headrace_registry_collected_bytes", "Bytes freed by garbage collection")
