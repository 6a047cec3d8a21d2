"""What a round's process may reach, held by the kernel: authors' code runs in it."""
