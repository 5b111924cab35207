"""One matrix product over many ranks: placements, pieces that move, cost, bounded memory.

placement.py     how an array is placed on a mesh of ranks: Shard, Replicate, Partial; a Tiling
regions.py       boxes of an array, and what a rank holds of it
traffic.py       which pieces of blocks move between ranks; bytes and messages of them, and counted
product.py       who multiplies, fetches and sums what: an algorithm is a row
product_plan.py  every rank's panels, and what they move
cost.py          the seconds of it from measured rates
streaming.py     products of matrices in files: tiles of C within a memory limit
"""
