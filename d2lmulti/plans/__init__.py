"""What is sent when: collectives and schedules as data, pure functions of counts."""
