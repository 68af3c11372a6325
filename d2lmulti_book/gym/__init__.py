"""Faulty programs to repair: `python -m d2lmulti gym`. Chapter: *gym*."""
