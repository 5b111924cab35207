"""The cases of tests/gpu/gemm_cases.py in memory that is lent to a kernel on the host."""

from gpu.gemm_cases import GemmCase, check
from twins.cuda_host.memory import lent_empty

__all__ = ["GemmCase", "is_right"]


def is_right(run, case):
    """Whether ``run(a, b, out, epilogue)`` leaves the right C, and everything around it alone."""
    return check(run, case, empty=lent_empty).right
