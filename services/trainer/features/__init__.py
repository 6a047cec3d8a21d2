"""Raw features to what a network sees: parsing, fitted statistics, the transform that is part of every export."""
