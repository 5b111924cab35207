"""The field in which JupyterLab takes a prediction; what is typed is put away, nothing else."""

from pathlib import Path
from typing import Any

import anywidget
import traitlets

from tiledask.errors import ConfigError

__all__ = ["Field", "shown"]


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
    bundle: Any = field._repr_mimebundle_()
    found: dict[str, Any] = bundle[0] if isinstance(bundle, tuple) else bundle
    return found
