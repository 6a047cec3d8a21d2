"""Notices of changes to other systems: signed CloudEvents by HTTP, retried until they are taken, and listed."""
