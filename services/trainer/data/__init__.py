"""From the event log to examples in an order that is always the same."""
