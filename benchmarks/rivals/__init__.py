"""The serving systems that Headrace is measured against: how each is installed, started and asked."""
