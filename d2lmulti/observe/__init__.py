"""Observers: they listen to events of communication and computation."""
