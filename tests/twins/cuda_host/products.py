"""The cases of `tiledask.lab.gpu.parts.cases` in memory that is lent to a kernel on the host."""

from twins.cuda_host.memory import lent_empty

from tiledask.lab.gpu.parts.cases import GemmCase, check

__all__ = ["GemmCase", "is_right"]


def is_right(run, case):
    """Whether ``run(a, b, out, epilogue)`` leaves the right C, and everything around it alone."""
    return check(run, case, room=lent_empty).right
