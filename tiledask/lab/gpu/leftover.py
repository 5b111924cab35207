"""Processes that outlive what started them are found by a mark in their environment, and ended.

Their parent may be gone and their session their own, but what they were started with stays theirs.
Run as a program, this waits for the end of its input, which comes however its parent dies:

    python -I -S leftover.py MARK < pipe
"""

import os
import signal
import sys
import time
from contextlib import suppress

__all__ = ["MARK", "end", "left"]

MARK = "TILEDASK_GPU_RUN"


def left(mark: str) -> list[int]:
    """Process ids of all that carry ``mark``; [] where the system does not tell."""
    asked, found = f"{MARK}={mark}".encode(), []
    with suppress(OSError):
        for name in os.listdir("/proc"):
            with suppress(OSError):  # ended meanwhile, or another user's
                if name.isdigit() and int(name) != os.getpid():
                    with open(f"/proc/{name}/environ", "rb") as file:
                        if asked in file.read().split(b"\0"):
                            found.append(int(name))
    return found


def end(mark: str, patience: float = 10.0) -> list[int]:
    """Kill all that carry ``mark``; those that are still there after ``patience`` seconds, inside
    a driver that does not let them go."""
    until = time.monotonic() + patience
    while alive := left(mark):
        for process in alive:
            with suppress(OSError):
                os.kill(process, signal.SIGKILL)
        if time.monotonic() > until:
            return alive
        time.sleep(0.02)
    return []


if __name__ == "__main__":
    sys.stdin.buffer.read()
    end(sys.argv[1])
