"""How much Python a piece of work runs: the same on every machine, however busy it is."""

import sys
from collections.abc import Callable


def python_calls(work: Callable[[], object]) -> int:
    """The functions that ``work`` calls, those of C that Python calls among them."""
    count = 0

    def note(_frame, event, _function):
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count
