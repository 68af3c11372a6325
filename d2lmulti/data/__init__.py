"""Data sets, and the batches that are cut from them."""
