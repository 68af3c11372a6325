"""Data sets, batches, the training loop and evaluation."""
