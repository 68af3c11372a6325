"""Measured side by side in one run: ours against the peer, as ratios."""
