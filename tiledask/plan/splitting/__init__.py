"""Layers cut into stages: the best split, well-known heuristics, and a judge of answers.

partition.py   the best contiguous split, as one asks for it
  minmax.py      the exact search for it
  exact.py       numbers that people give, as fractions
judge.py       which rule an answer breaks, and how far it is from the best
assignment.py  answers as people write them
"""
