"""When a round is due, and what it covers."""
