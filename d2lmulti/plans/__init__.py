"""What is sent when: collectives and schedules as data, pure functions of counts."""

from . import hierarchical  # noqa: F401  (enters itself in the table of algorithms)
