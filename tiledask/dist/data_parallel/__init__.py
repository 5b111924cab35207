"""Data parallelism: every rank has the model and some of the batch, and gradients are averaged.

averaging.py     gradients of all ranks in buckets, weighted by how many samples each has
  flat.py        arrays by name as one flat array, and back
halves.py        sums of halves that overflow, and what helps
orders.py        one sum in every order that a ring may take
zero.py          the optimizer's states, gradients and weights dealt out: ZeRO 1, 2 and 3
  chain.py       a model as layers one after the other, whose weights may be fetched when needed

What each of them calls is predicted in plan/collectives/data_parallel.py.
"""
