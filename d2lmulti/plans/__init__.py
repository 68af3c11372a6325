"""Plans of communication: collectives and schedules as data, functions of counts."""
