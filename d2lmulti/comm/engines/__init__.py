"""Engines between processes; their contract, and the local one, are in `group.py`."""
