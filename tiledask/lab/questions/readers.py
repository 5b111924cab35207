"""Readers of inputs that several questions have; `tiledask.lab.puzzles.fields` has the others."""

import re
from typing import Any

from tiledask.plan.inputs.hardware import load_device

__all__ = ["device", "grid"]


def device(value: Any) -> str:
    """The name of a device that is shipped."""
    if not isinstance(value, str):
        raise ValueError("must be the name of a device, such as H200")
    try:
        return load_device(value).name
    except ValueError as error:
        raise ValueError(f"is not known: {error}") from None


def grid(value: Any) -> str:
    """ "2x2", rows x columns of workers, or "auto"."""
    if not isinstance(value, str) or not re.fullmatch(r"auto|[1-9]\d{0,2}x[1-9]\d{0,2}", value):
        raise ValueError("must be rows x columns of workers, such as 2x2, or auto")
    return value
