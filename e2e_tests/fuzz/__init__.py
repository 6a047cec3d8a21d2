"""Malformed, damaged and large requests for every door of a running platform; by seed, so that faults come again."""
