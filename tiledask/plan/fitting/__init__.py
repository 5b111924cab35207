"""Bytes: what every device holds and when, whether it fits, and what would.

fit.py is the verdict; memory.py counts one layout, vectorized.py thousands, both by the terms of
terms.py, from activations.py; fixes.py looks for what fits among space.py's.
"""
