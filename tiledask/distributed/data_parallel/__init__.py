"""Data parallelism: every rank has the model and some of the batch, and gradients are averaged.

flat.py          arrays by name as one flat array, and back
zero.py          the optimizer's states, gradients and weights sharded: ZeRO 1, 2 and 3
  chain.py       a model as layers one after the other, whose weights may be fetched when needed

What each of them calls is predicted in plan/collectives/data_parallel.py.
"""
