"""The contents page of a learner's folder: nbs/contents.md with progress and score.

Written anew whenever it may have changed: by the starter and by `td.score`. The minutes in
nbs/contents.md itself are counted anew by `python -m tiledask.lab.course.index`.
"""

import re
from collections.abc import Iterable
from pathlib import Path

from tiledask.files import atomic_write
from tiledask.lab.learner.course import Walkthrough, course
from tiledask.lab.learner.kept import PROGRESS, Kept

__all__ = ["PAGE", "SHOW_ANEW", "timed", "write_contents"]

PAGE = "contents.md"
SHOW_ANEW = (
    "<script>for (const page of window.jupyterapp?.shell.widgets('main') ?? []) "
    f"if (page.context?.path.endsWith('{PAGE}')) page.context.revert()</script>"
)
"""In JupyterLab, has an open contents page read its file again; elsewhere it does nothing."""
_ROW = re.compile(
    r"^(?P<row>\| \[(?P<title>[^]]+)\]\((?P<name>\w+)\.ipynb\) \| (?P<can>.+)) \| \d+ \|$", re.M
)
_HEAD = re.compile(r"^(\| walkthrough \| .+ \| minutes \|)\n(\|---\|---\|--:\|)$", re.M)


def write_contents(source: Path, folder: Path) -> None:
    """None, once ``folder`` has its contents page.

    ``source``: the walkthroughs as they are shipped, with contents.md.
    """
    text = (source / PAGE).read_text("utf-8")
    titles = {row["name"]: row["title"] for row in _ROW.finditer(text)}
    done = {name: _done(folder / PROGRESS / f"{name}.jsonl") for name in titles}
    walkthroughs = {each.name: each for each in course(source) if each.name in titles}
    text = _HEAD.sub(r"\1 predicted | stars |\n\2--:|--:|", text)
    text = _ROW.sub(
        lambda row: _row(row, walkthroughs[row["name"]], done[row["name"]], folder), text
    )
    title, _, rest = text.partition("\n\n")
    left = [name for name, each in walkthroughs.items() if done[name][0] < each.asked]
    go_on = f"[{titles[left[0]]}]({left[0]}.ipynb)" if left else ""
    page = "\n\n".join((title, _total(walkthroughs, done, go_on), rest))
    atomic_write(folder / PAGE, page.encode())


def timed(page: str, walkthroughs: Iterable[Walkthrough]) -> str:
    """The contents ``page`` with the minutes that each walkthrough takes, counted anew."""
    minutes = {each.name: each.minutes for each in walkthroughs}
    return _ROW.sub(lambda row: f"{row['row']} | {minutes[row['name']]} |", page)


def _done(path: Path) -> tuple[int, int]:
    """Predictions made and stars, of what is kept in ``path``."""
    made = [f for f in Kept(path.stem, path).all().values() if f.get("value") is not None]
    return len(made), sum(facts.get("stars") or 0 for facts in made)


def _row(row: re.Match, each: Walkthrough, done: tuple[int, int], folder: Path) -> str:
    made, stars = done
    # one that was corrected since is a file beside the learner's
    later = sorted(folder.glob(f"{each.name}-*.ipynb"), key=lambda path: (len(path.name), path))
    corrected = f", [corrected]({later[-1].name})" if later else ""
    counts = f"{made} of {each.asked} | {stars} of {3 * each.asked}".replace(
        " of ", "&nbsp;of&nbsp;"
    )
    return (
        f"| [{row['title']}]({each.name}.ipynb){corrected} | {row['can']} | {each.minutes} | "
        f"{counts} |"
    )


def _total(
    walkthroughs: dict[str, Walkthrough], done: dict[str, tuple[int, int]], go_on: str
) -> str:
    asked = sum(each.asked for each in walkthroughs.values())
    made, stars = (sum(column) for column in zip(*done.values(), strict=True))
    hours = round(sum(each.minutes for each in walkthroughs.values()) / 60)
    said = f"**{made} of {asked} predictions made, {stars} of {3 * asked} stars.** "
    said += f"All of it takes about {hours} hours."
    return f"{said} {'Go on with' if made else 'Begin with'} {go_on}." if go_on else said
