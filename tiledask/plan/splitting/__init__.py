"""Layers cut into stages.

partition.py  the best split, how good an even one is, and a judge of answers
"""
