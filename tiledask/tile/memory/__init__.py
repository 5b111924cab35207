"""A device's memory.

pool.py   counts arrays, refuses the next
"""
