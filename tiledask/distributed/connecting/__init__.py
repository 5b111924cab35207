"""Clusters that run already: any that a Dask client reaches.

connect.py        connect, and AttachedCluster: slots on somebody else's workers
  versions.py     whether they can work with this process
  shared.py       whether they see the same files
  slots.py        what the scheduler and the workers do for it
    gpus.py         the GPU that a worker was given
"""
