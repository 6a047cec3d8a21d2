"""The wire between the processes of serving: messages, keys, the channel."""
