"""Data parallelism: every rank has the model and some of the batch, and gradients are averaged.

flat.py          arrays by name as one flat array, and back
chain.py         a model as layers one after the other

What each of them calls is predicted in plan/collectives/data_parallel.py.
"""
