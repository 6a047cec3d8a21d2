"""Training on blocks: losses, optimizers, metrics, checkpoints."""
