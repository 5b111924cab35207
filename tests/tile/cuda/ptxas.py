"""What the compiler's log says of a kernel's registers and memory."""

import re
from dataclasses import dataclass

__all__ = ["Resources", "resources"]


@dataclass(frozen=True)
class Resources:
    """What ptxas says that one thread, and one block, of a kernel takes."""

    registers: int
    """Registers of a thread, at launch."""
    spilled: int
    """Bytes of registers that did not fit and go through memory, stores and loads, per thread."""
    stack: int
    """Bytes of local memory per thread."""
    shared: int
    """Bytes of shared memory that the text itself declares; a launch may add to them."""
    remarks: tuple[str, ...]
    """Warnings and advice: an ignored setmaxnreg (C7508), a wgmma made to wait (C7510)..."""


def resources(log: str) -> Resources:
    """What the compiler's log says of the one kernel in it."""

    def number(pattern: str) -> int:
        found = re.search(pattern, log)
        return int(found[1]) if found else 0

    spilled = number(r"(\d+) bytes spill stores") + number(r"(\d+) bytes spill loads")
    remarks = tuple(line.strip() for line in log.splitlines() if re.search(r"\(C\d+\)", line))
    return Resources(
        number(r"Used (\d+) registers"),
        spilled,
        number(r"(\d+) bytes stack frame"),
        number(r"(\d+) bytes smem"),
        remarks,
    )
