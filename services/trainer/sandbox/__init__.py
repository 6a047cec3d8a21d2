"""The limits of a round's process, in which authors' code runs; the kernel enforces them."""
