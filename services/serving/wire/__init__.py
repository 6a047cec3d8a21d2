"""What the processes of serving say to each other: messages, keys, the channel."""
