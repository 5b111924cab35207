"""What JupyterLab shows of a prediction and a task: a field, whose text is put away and nothing
else; a button that asks for one more hint.
"""

from pathlib import Path
from typing import Any

import anywidget
import ipywidgets
import traitlets

from tiledask.errors import ConfigError

__all__ = ["Field", "shown", "with_hints"]


class Field(anywidget.AnyWidget):
    """One question, one answer."""

    _esm = Path(__file__).with_name("field.js")
    _css = Path(__file__).with_name("field.css")
    question = traitlets.Unicode().tag(sync=True)
    unit = traitlets.Unicode().tag(sync=True)
    choices = traitlets.List(traitlets.Unicode()).tag(sync=True)
    typed = traitlets.Unicode().tag(sync=True)
    said = traitlets.Unicode().tag(sync=True)
    """What Python says of it: what was kept, or why not."""
    refused = traitlets.Unicode().tag(sync=True)
    """What was typed, if it is no answer."""


def shown(guess: Any) -> dict[str, Any]:
    """The mime bundle of a field for ``guess``, a Guess.

    The callback may come in a thread of its own, while a cell runs: it puts the value away.
    """
    value, about = guess.value, {"question": guess.question, "unit": guess.unit}
    typed = value if isinstance(value, str) else "" if value is None else f"{value:.12g}"
    field = Field(**about, choices=list(guess.choices), typed=typed)

    def say() -> None:
        late = " (the first counts)" * guess.judged
        field.said = f"kept: {repr(guess).partition(': ')[2]}{late}"

    def keep(change: Any) -> None:
        field.said, refused = "", ""
        try:
            if change["new"].strip():
                guess.take(change["new"])
                say()
        except ConfigError as error:
            field.said, refused = str(error), change["new"]
        field.refused = refused

    if value is not None:
        say()
    field.observe(keep, "typed")
    return _bundle(field)


def with_hints(shown: str, left: int, hint: Any) -> dict[str, Any]:
    """The mime bundle of ``shown``, HTML, above a button: it shows one ``hint()`` more, of which
    ``left`` are left."""
    words, button = ipywidgets.HTML(shown), ipywidgets.Button(description=f"Hint ({left} left)")

    def more(_: Any) -> None:
        found = hint()
        left = found.of - found.number
        words.value += found._repr_html_()
        button.description, button.disabled = f"Hint ({left} left)", not left

    button.on_click(more)
    return _bundle(ipywidgets.VBox([words, button]))


def _bundle(widget: Any) -> dict[str, Any]:
    bundle: Any = widget._repr_mimebundle_()
    found: dict[str, Any] = bundle[0] if isinstance(bundle, tuple) else bundle
    return found
