"""A page to print: tasks with room for answers; the same with answers, for whoever marks it."""

from base64 import b64encode
from collections.abc import Sequence
from typing import Any

from tiledask.lab.tasks import task
from tiledask.lab.tasks.ladder import LEVELS
from tiledask.plan import html

__all__ = ["sheet"]

_STYLE = """
@page { size: A4; margin: 18mm }
body { font: 11pt/1.45 sans-serif; max-width: 46em; margin: auto; padding: 0 1em; color: #000 }
section { break-inside: avoid; margin-bottom: 2em }
img { max-width: 100% }
th { text-align: left; padding-right: 2em; font-weight: normal }
.room { border-bottom: 1px solid #888; height: 2.2em }
.answer { border-left: 3px solid #555; padding-left: 1em }
"""


def sheet(names: Sequence[str], seed: int = 0, answers: bool = False) -> str:
    """A page of HTML with a task for each of ``names``: a puzzle's name, or idle-1 to idle-12,
    "idle" for all twelve. ``seed`` draws the numbers of the ladder.

    With ``answers``: the working of a level, and an answer to a puzzle that meets every target.
    ConfigError for a name that is none.

    >>> page = sheet(["idle-3"], seed=7)
    >>> "seed 7" in page, "<ol>" in page, "<ol>" in sheet(["idle-3"], seed=7, answers=True)
    (True, False, True)
    """
    all_of_them = [f"idle-{n}" for n in range(1, 1 + len(LEVELS))]
    asked = [each for name in names for each in (all_of_them if name == "idle" else [name])]
    parts = []
    for number, each in enumerate((task(name, seed) for name in asked), 1):
        room = "<div class='room'></div>" * 2
        if answers and each.lines:
            lines = "".join(f"<li>{html.words(line)}</li>" for line in each.lines)
            room = f"<div class='answer'><ol>{lines}</ol></div>"
        elif answers:
            best = each.solve() if each.solve else ""
            drawn = _picture(each.draw(best), f"{each.title}, solved")
            room = f"<div class='answer'><p>{html.words(best)}</p>{drawn}</div>"
        shown = f"{each._repr_html_()}{_picture(each.draw(), each.title)}"
        parts.append(f"<section><h2>{number}</h2>{shown}{room}</section>")
    title = html.words(f"tiledask, seed {seed}{': answers' if answers else ''}")
    head = f"<meta charset='utf-8'><title>{title}</title><style>{_STYLE}</style>"
    name = "" if answers else "<p>Name: <span class='room'>&emsp;&emsp;</span></p>"
    return f"<!doctype html><html lang='en'>{head}<h1>{title}</h1>{name}{''.join(parts)}"


def _picture(figure: Any, words: str) -> str:
    picture = b64encode(figure.to_png()).decode()
    return f"<img width='700' alt='{html.words(words)}' src='data:image/png;base64,{picture}'>"
