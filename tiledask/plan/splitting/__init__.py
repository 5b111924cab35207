"""Layers cut into stages: the best split, and a judge of answers.

partition.py   the best contiguous split, as one asks for it
  search.py      the exact search for it
judge.py       which rule an answer breaks, and how far it is from the best
answers.py     answers as people write them
"""
