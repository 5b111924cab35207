"""The contents page of a learner's folder: nbs/contents.md with progress and score.

Written anew whenever it may have changed: by the starter and by `td.score`.
"""

import json
import re
from pathlib import Path

from tiledask.files import atomic_write
from tiledask.lab.learner.kept import PROGRESS, Counts, Kept

__all__ = ["PAGE", "write_contents"]

PAGE = "contents.md"
_ROW = re.compile(
    r"^\| \[(?P<title>[^]]+)\]\((?P<name>\w+)\.ipynb\) \| .+ \| (?P<minutes>\d+) \|$", re.M
)
_HEAD = re.compile(r"^(\| walkthrough \| .+ \| minutes \|)\n(\|---\|---\|--:\|)$", re.M)


def write_contents(source: Path, folder: Path) -> None:
    """Write the contents page of ``folder``; ``source``: the walkthroughs as they are shipped."""
    text = (source / PAGE).read_text("utf-8")
    rows = {row["name"]: row for row in _ROW.finditer(text)}
    asked = {name: _predictions(source / f"{name}.ipynb") for name in rows}
    came = {name: Counts.of(Kept(name, folder / PROGRESS / f"{name}.json")) for name in rows}

    def row(found: re.Match[str]) -> str:
        of, counts = asked[found["name"]], came[found["name"]]
        shown = f"{counts.made} of {of} | {counts.stars} of {3 * of}"
        return f"{found[0]} {shown.replace(' of ', '&nbsp;of&nbsp;')} |"

    text = _ROW.sub(row, _HEAD.sub(r"\1 predicted | stars |\n\2--:|--:|", text))
    of, made = sum(asked.values()), sum(counts.made for counts in came.values())
    stars = sum(counts.stars for counts in came.values())
    hours = round(sum(int(found["minutes"]) for found in rows.values()) / 60)
    said = f"**{made} of {of} predictions made, {stars} of {3 * of} stars.**"
    said += f" All of it takes about {hours} hours."
    if left := [name for name in rows if came[name].made < asked[name]]:
        begin = "Go on with" if made else "Begin with"
        said += f" {begin} [{rows[left[0]]['title']}]({left[0]}.ipynb)."
    title, _, rest = text.partition("\n\n")
    atomic_write(folder / PAGE, "\n\n".join((title, said, rest)).encode())


def _predictions(path: Path) -> int:
    """How many a walkthrough asks for."""
    cells = json.loads(path.read_text("utf-8"))["cells"]
    code = ("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    return sum("td.predict(" in source for source in code)
