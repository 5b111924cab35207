"""Layers cut into stages: the best split, and a judge of answers."""
