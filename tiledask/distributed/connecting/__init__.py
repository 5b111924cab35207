"""Clusters that run already: any that a Dask client reaches.

connect.py     connect: a Cluster on somebody else's workers
versions.py    whether they can work with this process
shared.py      whether they see the same files
"""
