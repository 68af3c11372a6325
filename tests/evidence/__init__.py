"""What the evidence page holds, as runs: one module makes one or two of its tables.

`tools/make_evidence.py` calls them. A table is a function of `step`, which reports
progress, that returns rows; beside it stands what would be wrong in a row.
"""
