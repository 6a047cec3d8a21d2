"""What control and a round's process say to each other: an assignment in, messages out, a crash report left behind."""
