"""Files that are whole or not there: atomic writes, locks, arrays without pickle."""
