"""Layers cut into stages: the best split, well-known heuristics, and a judge of answers."""
