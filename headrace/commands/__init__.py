"""The commands of the command line, by what they act on. Each parses, calls, prints; none decides."""
