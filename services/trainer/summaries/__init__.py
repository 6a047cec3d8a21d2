"""What TensorBoard shows of a round: event files, live and of a version, and what is looked at to write them."""
