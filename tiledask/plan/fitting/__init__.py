"""Bytes: what every device holds and when, whether it fits, and what would."""
