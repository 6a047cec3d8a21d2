"""What a file of data says about a stream's schema and a first model: columns, then their parts, then the two files."""
