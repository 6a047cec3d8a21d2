"""The trainer: rounds planned, leased, trained and registered."""
