"""What values look like, by field: mergeable sketches, their JSON, and how far two of them are apart."""
