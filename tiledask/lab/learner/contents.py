"""The contents page of a learner's folder: nbs/contents.md with minutes, progress and score.

Written anew whenever it may have changed: by the starter and by `td.score`. The minutes in
nbs/contents.md itself are counted anew by `python -m tiledask.lab.course.index`.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path

from tiledask.files import atomic_write
from tiledask.lab.learner.kept import PROGRESS, Kept

__all__ = ["DEEPER", "PAGE", "SHOW_ANEW", "Walkthrough", "course", "timed", "write_contents"]

PAGE = "contents.md"
SHOW_ANEW = (
    "<script>for (const page of window.jupyterapp?.shell.widgets('main') ?? []) "
    f"if (page.context?.path.endsWith('{PAGE}')) page.context.revert()</script>"
)
"""In JupyterLab, has an open contents page read its file again; elsewhere it does nothing."""
WORDS, EXERCISE, PREDICTION = 60, 5, 1
"""Words that a student reads in a minute where each number is worked out along; minutes of each."""
DEEPER = "## Deeper: "
"""How a section begins that nothing later needs: it is read by those who want to, and not timed."""
_ROW = re.compile(
    r"^(?P<row>\| \[(?P<title>[^]]+)\]\((?P<name>\w+)\.ipynb\) \| .+) \| \d+ \|$", re.M
)
_HEAD = re.compile(r"^(\| walkthrough \| .+ \| minutes \|)\n(\|---\|---\|--:\|)$", re.M)


@dataclass(frozen=True)
class Walkthrough:
    """One notebook of the course, read from its file."""

    name: str
    """Of the file, without its ending: 03_split_one_product."""
    minutes: int
    """To read, predict and do the exercises, without the sections that go deeper."""
    asked: int
    """Predictions."""


def course(folder: Path) -> list[Walkthrough]:
    """The walkthroughs in ``folder``, in their order."""
    found = []
    for path in sorted(folder.glob("[0-9]*.ipynb")):
        asked, minutes, deeper = 0, 0.0, False
        for cell in json.loads(path.read_text("utf-8"))["cells"]:
            source, words = "".join(cell["source"]), cell["cell_type"] == "markdown"
            if words and source.startswith("## "):
                deeper = source.startswith(DEEPER)
            predicts = not words and "td.predict(" in source
            asked += predicts
            if not deeper:
                task = "task" in cell["metadata"].get("tags", ())
                minutes += PREDICTION * predicts + EXERCISE * task
                minutes += words * len(source.split()) / WORDS
        found.append(Walkthrough(path.stem, max(1, round(minutes)), asked))
    return found


def write_contents(source: Path, folder: Path) -> None:
    """Write the contents page of ``folder``; ``source``: the walkthroughs as they are shipped."""
    text = (source / PAGE).read_text("utf-8")
    titles = {row["name"]: row["title"] for row in _ROW.finditer(text)}
    shown = {each.name: each for each in course(source) if each.name in titles}
    made, stars = {}, {}
    for name in shown:
        kept = Kept(name, folder / PROGRESS / f"{name}.jsonl").all().values()
        typed = [facts for facts in kept if facts.get("value") is not None]
        made[name], stars[name] = len(typed), sum(facts.get("stars") or 0 for facts in typed)

    def row(found: re.Match[str]) -> str:
        each, name = shown[found["name"]], found["name"]
        counts = f"{made[name]} of {each.asked} | {stars[name]} of {3 * each.asked}"
        return f"{found['row']} | {each.minutes} | {counts.replace(' of ', '&nbsp;of&nbsp;')} |"

    text = _ROW.sub(row, _HEAD.sub(r"\1 predicted | stars |\n\2--:|--:|", text))
    asked, all_made = sum(each.asked for each in shown.values()), sum(made.values())
    hours = round(sum(each.minutes for each in shown.values()) / 60)
    counts = f"{all_made} of {asked} predictions made, {sum(stars.values())} of {3 * asked} stars"
    said = f"**{counts}.** All of it takes about {hours} hours."
    if left := [name for name, each in shown.items() if made[name] < each.asked]:
        begin = "Go on with" if all_made else "Begin with"
        said += f" {begin} [{titles[left[0]]}]({left[0]}.ipynb)."
    title, _, rest = text.partition("\n\n")
    atomic_write(folder / PAGE, "\n\n".join((title, said, rest)).encode())


def timed(page: str, walkthroughs: list[Walkthrough]) -> str:
    """The contents ``page`` with the minutes that each walkthrough takes, counted anew."""
    minutes = {each.name: each.minutes for each in walkthroughs}
    return _ROW.sub(lambda row: f"{row['row']} | {minutes[row['name']]} |", page)
