"""The registry: streams, models, rounds, versions, aliases; it judges and promotes."""
