"""Many devices: Dask workers as ranks, sharded arrays, products and pipelines over them."""
