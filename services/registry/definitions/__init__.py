"""Streams with their schemas, models with their definitions."""
