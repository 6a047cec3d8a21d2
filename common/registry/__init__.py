"""The registry as the other services see it: its values, their wire form, the client, its files."""
