"""Clusters of workers that a Dask client reaches, whoever started them.

connect.py     connect, and what it has in common with start_cluster: slots on these workers
shared.py      whether they see the same files
"""
