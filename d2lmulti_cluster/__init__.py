"""A cost model of communication, computation, and memory, without a framework."""
