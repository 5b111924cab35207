"""The text of the CUDA kernels: each file, and each kernel as one piece with its headers."""

import re
from functools import cache
from importlib.resources import files

__all__ = ["HEADERS", "KERNELS", "file_text", "source"]

KERNELS = ("smem_tiled", "sgemm_warptiled", "mma_multistage", "wgmma_ws_persistent")
"""Ours, the simplest first."""
HEADERS = ("gpu.cuh", "hopper.cuh", "epilogue.cuh", "panels.cuh")


@cache
def file_text(name: str) -> str:
    """The text of one file beside this one.

    >>> "__global__" in file_text("smem_tiled.cu")
    True
    """
    return files("tiledask.tile.cuda").joinpath(name).read_text(encoding="utf-8")


@cache
def source(name: str) -> str:
    """The kernel ``name`` as one text: every header in place of the first line that includes it.

    The compiler then needs no folders, and one text is what it is cached by.
    """
    return _inlined(f"{name}.cu", set())


def _inlined(name: str, seen: set[str]) -> str:
    lines = []
    for line in file_text(name).splitlines():
        included = re.fullmatch(r'#include "(.+)"', line)
        if included is None:
            lines.append("" if line == "#pragma once" else line)
        elif included[1] not in seen:
            seen.add(included[1])
            lines.append(_inlined(included[1], seen))
    return "\n".join(lines)
