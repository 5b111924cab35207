"""Clusters of workers that a Dask client reaches, whoever started them: `tiledask.connect`."""
