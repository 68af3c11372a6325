"""Communication: devices, groups of ranks, meshes, collectives, engines."""
