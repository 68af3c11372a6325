"""Where bytes move: devices, groups of ranks, cutting, collectives, engines."""
