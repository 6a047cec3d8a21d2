"""A request that is sent twice is taken once: idempotency keys."""
