"""What communication and memory cost, without any framework."""
