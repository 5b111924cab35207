"""Which section of which notebook teaches a question: by its heading.

## The best, by trying all <!-- question 34 -->
"""

import json
import re
from functools import cache

from tiledask.plan.data import shipped

__all__ = ["taught"]

_MARKED = re.compile(r"^#+ +(.+) <!-- questions? (\d+(?:, \d+)*) -->$", re.MULTILINE)


def taught(number: int) -> list[dict[str, str]]:
    """The sections that teach question ``number``, in the order of the notebooks.

    >>> taught(34)
    [{'notebook': '06_cut_24_layers.ipynb', 'section': 'The best, by trying all'}]
    """
    return [
        {"notebook": name, "section": heading}
        for name, heading, numbers in _sections()
        if str(number) in numbers.split(", ")
    ]


@cache
def _sections() -> list[tuple[str, str, str]]:
    """(file in nbs/, heading, numbers) of all that teach any."""
    return [
        (path.name, *found)
        for path in sorted(shipped("nbs").glob("[0-9]*.ipynb"))
        for cell in json.loads(path.read_text("utf-8"))["cells"]
        if cell["cell_type"] == "markdown"
        for found in _MARKED.findall("".join(cell["source"]))
    ]
