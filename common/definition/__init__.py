"""A model's definition (model.yaml): each section read once, every key checked."""
