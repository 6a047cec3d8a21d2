"""What came of rounds: published, judged, named by aliases, compared, and in the end collected."""
