"""The arithmetic of collectives: who sends what to whom, the bytes of it, and the seconds.

algorithms.py   every algorithm as rounds of moves of chunks
cost.py         what the moves carry, bytes and messages of every rank, and how long they take
halo.py         which rows neighbours need of each other
rows.py         who makes which rows of an image, and which rows it borrows
shards.py       which heads and numbers every rank holds
layouts.py      how the weights of layers are placed on ranks, by name
"""

from tiledask.plan.collectives import algorithms, shards

__all__ = ["algorithms", "shards"]
