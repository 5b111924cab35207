"""Clusters that run already: any that a Dask client reaches.

connect.py     connect: a Cluster on somebody else's workers
shared.py      whether they see the same files
"""
