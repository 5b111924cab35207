"""A plugin of pytest: a notebook's kernel that does not answer is started once more.

Jupyter chooses a kernel's ports before the kernel takes them; on a machine where clusters start all
the time, somebody else may have one of them by then.
"""

from typing import Any

from nbval import kernel

_start = kernel.start_new_kernel


def _start_again(*args: Any, **options: Any) -> Any:
    try:
        return _start(*args, **options)
    except RuntimeError:  # it has been ended
        return _start(*args, **options)


kernel.start_new_kernel = _start_again
