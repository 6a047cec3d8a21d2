"""Every open request until it is answered once, and what is counted and kept of it."""
