"""Pictures of plans, records and histories; the only room with Matplotlib."""
