"""Programs of plan are run, with arrays, on threads and on Dask workers (runner.py)."""
