"""cuda.bindings, as far as kernels need it."""

__version__ = "13.0.3"
