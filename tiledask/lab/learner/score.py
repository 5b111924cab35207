"""The score: predictions made and how near they came, tasks tried, solved, and their stars.

The contents page of a learner's folder is nbs/contents.md with progress and score, written anew
whenever they may have changed: by the starter and by `score`.
"""

import json
import os
import re
from collections import Counter
from pathlib import Path

from tiledask.files import atomic_write
from tiledask.lab.learner.copies import shipped_notebooks
from tiledask.lab.learner.kept import FOLDER, PROGRESS, TASKS, Kept, here, notebooks
from tiledask.plan.tables import Table

__all__ = ["PAGE", "score", "write_contents"]

PAGE = "contents.md"
_ROW = re.compile(
    r"^\| \[(?P<title>[^]]+)\]\((?P<name>\w+)\.ipynb\) \| .+ \| (?P<minutes>\d+) \|$", re.M
)
_HEAD = re.compile(r"^(\| unit \| .+ \| minutes \|)\n(\|---\|---\|--:\|)$", re.M)


def score() -> Table:
    """How many of this notebook's predictions were made and how near they came, and how many of
    the tasks that were tried are solved; all notebooks too, and the command line.

    A prediction counts once its cell has run. What is exact has three stars, within 10 % two,
    within a factor of 2 one. A task has its best answer's. Where `make lab` made a contents page,
    it shows the score too.

    >>> score().head[:3]
    ('notebook', 'predicted', 'exact')
    """
    found = {kept.notebook or "here": _counts(kept) for kept in notebooks()}
    bold = list(found).index(here().notebook or "here")
    if len(found) > 1:
        found["all"] = sum(found.values(), Counter())
    learners = Path(os.environ.get(FOLDER, "")).parent
    if os.environ.get(FOLDER) and (learners / PAGE).exists():
        write_contents(shipped_notebooks(), learners)
    head = ("notebook", "predicted", "exact", "stars", "exercises solved", "exercise stars")
    made: tuple[str, ...] = "{made} of {asked}", "{exact}", "{stars} of {most}"
    if any(counts["tried"] for counts in found.values()):
        made += "{solved} of {tried}", "{of_tasks} of {of_tried}"
    rows = [(k.replace("_", " "), *(w.format_map(n) for w in made)) for k, n in found.items()]
    return Table(head[: len(made) + 1], rows, bold=[bold])


def _counts(kept: Kept) -> Counter[str]:
    """Predictions asked for, made and exact, tasks tried and solved, and the stars of both."""
    found: Counter[str] = Counter()
    for facts in kept.all().values():
        made = int(facts.get("value") is not None)
        stars = made * (facts.get("stars") or 0)
        found.update(asked=1, most=3, made=made, exact=stars // 3, stars=stars)
    tried = [facts for facts in kept.all(TASKS).values() if facts.get("tries")]
    for facts in tried:
        solved, stars = (int(facts.get(name) or 0) for name in ("solved", "stars"))
        found.update(tried=1, of_tried=3, solved=solved, of_tasks=stars)
    return found


def write_contents(source: Path, folder: Path) -> None:
    """Write the contents page of ``folder``; ``source``: the notebooks as they are shipped."""
    text = (source / PAGE).read_text("utf-8")
    rows = {row["name"]: row for row in _ROW.finditer(text)}
    asked = {name: _predictions(source / f"{name}.ipynb") for name in rows}
    came = {name: _counts(Kept(name, folder / PROGRESS / f"{name}.json")) for name in rows}

    def row(found: re.Match[str]) -> str:
        of, counts = asked[found["name"]], came[found["name"]]
        shown = f"{counts['made']} of {of} | {counts['stars']} of {3 * of}"
        return f"{found[0]} {shown.replace(' of ', '&nbsp;of&nbsp;')} |"

    text = _ROW.sub(row, _HEAD.sub(r"\1 predicted | stars |\n\2--:|--:|", text))
    of = sum(asked.values())
    made, stars = (sum(counts[what] for counts in came.values()) for what in ("made", "stars"))
    hours = round(sum(int(found["minutes"]) for found in rows.values()) / 60)
    said = f"**{made} of {of} predictions made, {stars} of {3 * of} stars**"
    said += " when this page was opened (*File*, *Reload Markdown File from Disk* counts again)."
    said += f" All of it takes about {hours} hours."
    if left := [name for name in rows if came[name]["made"] < asked[name]]:
        begin = "Go on with" if made else "Begin with"
        said += f" {begin} [{rows[left[0]]['title']}]({left[0]}.ipynb)."
    title, _, rest = text.partition("\n\n")
    atomic_write(folder / PAGE, "\n\n".join((title, said, rest)).encode())


def _predictions(path: Path) -> int:
    """How many a notebook asks for."""
    cells = json.loads(path.read_text("utf-8"))["cells"]
    code = ("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    return sum("td.predict(" in source for source in code)
