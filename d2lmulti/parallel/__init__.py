"""The ways to split the work of training over devices."""
