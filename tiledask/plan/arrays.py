"""Types of numbers that may be many: an array, and one value or an array of them."""

from typing import Any

from numpy.typing import NDArray

__all__ = ["Array", "Values"]

Array = NDArray[Any]
"""An array of any numbers; where the numbers' kind is known, it is written out instead."""
Values = float | Array
"""One number, or an array with one for each layout that is looked at at once."""
