"""The arithmetic of collectives: who sends what to whom, and the bytes of it."""

from tiledask.plan.collectives import algorithms, shards

__all__ = ["algorithms", "shards"]
