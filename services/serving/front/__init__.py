"""Every open request until it is answered once, and its counts and log."""
