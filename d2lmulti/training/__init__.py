"""The training loop, its strategies, learning rates, checkpoints, and results."""
