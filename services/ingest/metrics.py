"""What ingest counts."""

from prometheus_client import Counter, Gauge, Histogram

EVENTS_ACCEPTED = Counter("headrace_ingest_events_accepted", "Events that the log holds", ["stream"])
EVENTS_REFUSED = Counter(
    "headrace_ingest_events_refused", "Events that were not taken", ["stream", "reason"]
)  # reason: invalid | deadletter
LABELS_ACCEPTED = Counter("headrace_ingest_labels_accepted", "Late labels that the log holds", ["stream"])
LABELS_REFUSED = Counter("headrace_ingest_labels_refused", "Late labels that were not taken", ["stream"])
LETTERS_WITHOUT_PAYLOAD = Counter(
    "headrace_ingest_deadletters_without_payload", "Dead letters whose event was too large to be kept", ["stream"]
)
REQUESTS = Counter("headrace_ingest_requests", "Requests by outcome: ok, duplicate, or the error's name", ["outcome"])
CHUNK_BYTES = Histogram("headrace_ingest_chunk_bytes", "Size of log records", buckets=[2.0**n for n in range(8, 21)])
CHUNK_EVENTS = Histogram("headrace_ingest_chunk_events", "Events per log record", buckets=[4.0**n for n in range(8)])
APPEND_SECONDS = Histogram(
    "headrace_ingest_append_seconds", "Time of one append to the log", buckets=[0.0005 * 2.0**n for n in range(14)]
)
KEYS = Counter(
    "headrace_ingest_shared_keys", "Idempotency keys asked for in Redis, and what came of it", ["outcome"]
)  # outcome: claimed | answered | waited | conflict | given_up | unavailable | not_noted
BYTES_IN_FLIGHT = Gauge("headrace_ingest_bytes_in_flight", "Estimated memory of requests that are being taken")
BYTES_IN_FLIGHT_LIMIT = Gauge("headrace_ingest_bytes_in_flight_limit", "INGEST_MAX_IN_FLIGHT_BYTES")
