"""Schedules of a pipeline as lists of instructions, and their proofs; pure."""
