"""What test suites share: waits, ports, and real servers to test against. Product code never imports it."""
