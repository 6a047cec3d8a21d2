"""Telling others what happened: signed CloudEvents by HTTP, tried again until they are taken, and listed."""
