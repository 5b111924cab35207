"""RMM without a GPU: buffers, and the resources that give them memory, on the CuPy stand-in.

As RMM 26.10 has them: a buffer takes its memory from the resource that its device had when it was
made, and gives exactly that back to it in the order of its own stream; what a callback raises comes
out of C++ as MemoryError with its words, or RuntimeError; what it raises when memory is given back
goes nowhere, so here it is a fault.
"""

from rmm import mr
from rmm._memory import DeviceBuffer

__version__ = "26.10.00"
__all__ = ["DeviceBuffer", "mr"]
