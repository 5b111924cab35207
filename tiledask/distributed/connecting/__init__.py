"""Clusters of workers that a Dask client reaches, whoever started them.

attach.py      slots on these workers, and a Cluster of them
connect.py     connect: a Cluster on somebody else's workers
shared.py      whether they see the same files
"""
