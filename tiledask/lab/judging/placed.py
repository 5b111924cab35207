"""Cuts between layers that a reader places in JupyterLab: the answer as text, and its widget."""

from pathlib import Path
from typing import Any

from tiledask.lab.learner.kept import TASKS, here

__all__ = ["PlacedAnswer"]


class PlacedAnswer:
    """An answer that is moved by hand; `answer` is its text, None until something was moved.

    It is kept with the progress of the task, and stands there again the next time.
    """

    def __init__(self, task: str, form: str, setup: dict[str, Any]) -> None:
        """``setup``: the numbers that cuts.js draws."""
        self.task, self.form, self.setup = task, form, setup
        self.answer: str | None = here().get(task, TASKS).get("answer")

    def take(self, answer: str) -> None:
        """``answer`` is what stands there from now on."""
        self.answer = answer
        here().put(self.task, TASKS, answer=answer)

    def __repr__(self) -> str:
        """True also on the next day, when only the text of an output is left."""
        return (
            f"{self.task}: run this cell in JupyterLab and place the answer there, or write it "
            f"into the call of check: {self.form}"
        )

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        try:
            import anywidget
            import traitlets
        except ImportError:
            return {"text/plain": repr(self)}
        folder = Path(__file__).parent

        class PlacingWidget(anywidget.AnyWidget):
            _esm, _css = folder / "cuts.js", folder / "cuts.css"
            setup = traitlets.Dict().tag(sync=True)
            answer = traitlets.Unicode().tag(sync=True)

        board = PlacingWidget(setup=self.setup, answer=self.answer or "")
        # may come in a thread of its own, while a cell runs: it only puts the text away
        board.observe(lambda change: self.take(change["new"]), "answer")
        bundle: Any = board._repr_mimebundle_()
        found: dict[str, Any] = bundle[0] if isinstance(bundle, tuple) else bundle
        return {**found, "text/plain": repr(self)}
