"""A plugin of pytest: a notebook's kernel that does not answer is started once more.

Jupyter chooses a kernel's ports before the kernel takes them; on a machine where clusters start all
the time, somebody else may have one of them by then.
"""

import sys
from typing import Any

# nbformat's jsonschema makes parsers of addresses with it, for seconds, and does without it
sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]

from nbval import kernel  # noqa: E402

_start = kernel.start_new_kernel


def _start_again(*args: Any, **options: Any) -> Any:
    try:
        return _start(*args, **options)
    except RuntimeError:  # it has been ended
        return _start(*args, **options)


kernel.start_new_kernel = _start_again
