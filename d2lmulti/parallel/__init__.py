"""Parallelism strategies: how a training step is split over devices."""
