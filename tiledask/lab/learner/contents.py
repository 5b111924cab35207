"""The contents page of a learner's folder: nbs/contents.md with time, progress and score.

Written anew whenever it may have changed: by the starter and by `td.score`.
"""

import re
from pathlib import Path

from tiledask.lab.learner.arc import arc
from tiledask.lab.learner.course import Walkthrough, course
from tiledask.lab.learner.kept import Kept
from tiledask.lab.report import write_whole

__all__ = ["PAGE", "PROGRESS", "SHOW_ANEW", "write_contents"]

PAGE = "contents.md"
PROGRESS = ".progress"
"""The folder, in the learner's, of what is kept."""
SHOW_ANEW = (
    "<script>for (const page of window.jupyterapp?.shell.widgets('main') ?? []) "
    f"if (page.context?.path.endsWith('{PAGE}')) page.context.revert()</script>"
)
"""In JupyterLab, has an open contents page read its file again; elsewhere it does nothing."""
_ROW = re.compile(r"^\| \[(?P<title>[^]]+)\]\((?P<name>\w+)\.ipynb\) \| (?P<can>.+) \|$", re.M)
_HEAD = re.compile(r"^\| walkthrough \| (.+) \|\n\|---\|---\|$", re.M)


def write_contents(source: Path, folder: Path) -> None:
    """None, once ``folder`` has its contents page and picture.

    ``source``: the walkthroughs as they are shipped, with contents.md.
    """
    walkthroughs = {each.name: each for each in course(source)}
    done = {name: _done(folder / PROGRESS / f"{name}.json") for name in walkthroughs}
    text = (source / PAGE).read_text("utf-8")
    text = _HEAD.sub(r"| walkthrough | \1 | minutes | predicted | stars |\n|---|---|--:|--:|--:|", text)
    text = _ROW.sub(lambda row: _row(row, walkthroughs[row["name"]], done[row["name"]], folder), text)
    title, _, rest = text.partition("\n\n")
    picture = f"![Which walkthrough builds on which]({Path(PAGE).with_suffix('.svg')})"
    page = "\n\n".join((title, _total(walkthroughs, done), picture, rest))
    made = {name: predicted for name, (predicted, _) in done.items()}
    drawn = arc(list(walkthroughs.values()), made)
    write_whole((folder / PAGE).with_suffix(".svg"), drawn.encode())
    write_whole(folder / PAGE, page.encode())


def _done(path: Path) -> tuple[int, int]:
    """Predictions made and stars, of what is kept in ``path``."""
    made = [f for f in Kept(path.stem, path).all().values() if f.get("value") is not None]
    return len(made), sum(facts.get("stars") or 0 for facts in made)


def _row(row: re.Match, each: Walkthrough, done: tuple[int, int], folder: Path) -> str:
    made, stars = done
    # one that was corrected since is a file beside the learner's
    later = sorted(folder.glob(f"{each.name}-*.ipynb"), key=lambda path: (len(path.name), path))
    corrected = f", [corrected]({later[-1].name})" if later else ""
    return (
        f"| [{row['title']}]({each.name}.ipynb){corrected} | {row['can']} | {each.minutes} | "
        f"{made} of {each.asked} | {stars} of {3 * each.asked} |"
    )


def _total(walkthroughs: dict[str, Walkthrough], done: dict[str, tuple[int, int]]) -> str:
    asked = sum(each.asked for each in walkthroughs.values())
    made, stars = (sum(column) for column in zip(*done.values(), strict=True))
    hours = round(sum(each.minutes for each in walkthroughs.values()) / 60)
    left = [each for name, each in walkthroughs.items() if done[name][0] < each.asked]
    said = f"**{made} of {asked} predictions made, {stars} of {3 * asked} stars.** "
    said += f"All of it takes about {hours} hours."
    if left:
        how = "Go on with" if made else "Begin with"
        said += f" {how} [{left[0].number} {left[0].words}]({left[0].name}.ipynb)."
    return said
