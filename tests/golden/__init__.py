"""Golden values: what the package answers today, row by row."""
