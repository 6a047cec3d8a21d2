"""A trained model as a SavedModel."""
