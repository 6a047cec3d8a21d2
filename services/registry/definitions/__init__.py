"""What is learned from what: streams with their schemas, models with their definitions."""
