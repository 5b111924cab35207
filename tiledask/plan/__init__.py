"""Arithmetic on frozen values: no arrays on devices, no Dask."""
