"""The arithmetic of collectives: who sends what to whom, and the bytes of it.

algorithms.py   every algorithm as rounds of moves of chunks
cost.py         what the moves carry, bytes and messages of every rank
rows.py         which rows neighbours need of each other; who makes which rows of an image
shards.py       which heads and numbers every rank holds; the layouts of layers, by name
"""

from tiledask.plan.collectives import algorithms, shards

__all__ = ["algorithms", "shards"]
