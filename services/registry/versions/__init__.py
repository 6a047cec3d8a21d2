"""Versions: published, judged, named by aliases, compared, and in the end collected."""
