"""Figures of plans, traces, and histories; the only modules with Matplotlib."""
