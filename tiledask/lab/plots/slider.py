"""A figure that is drawn again when the reader moves a slider; without a kernel, one of them."""

from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from tiledask.extras import needed_for
from tiledask.plan import html

__all__ = ["sliders"]


class _Sliders(NamedTuple):
    """A figure and what it is drawn of; a notebook shows it with its sliders."""

    draw: Callable[..., Any]
    choices: Mapping[str, Sequence[Any]]
    start: Mapping[str, Any]

    def __repr__(self) -> str:
        at = ", ".join(f"{name} = {value}" for name, value in self.start.items())
        return f"{self.draw(**self.start)!r} | with sliders, here at {at}"

    def _repr_mimebundle_(self, **_options: Any) -> dict[str, Any]:
        widget = self._widget()
        bundle = widget._repr_mimebundle_()
        bundle = dict(bundle[0] if isinstance(bundle, tuple) else bundle)
        # without a kernel: the picture as it begins
        picture = b64encode(widget.children[-1].value).decode()
        return {**bundle, "text/plain": repr(self), "image/png": picture}

    def _widget(self) -> Any:
        """The sliders, what is refused, and the picture."""
        with needed_for("sliders"):
            import ipywidgets

        image, words = ipywidgets.Image(format="png"), ipywidgets.HTML()
        image.layout.max_width = "100%"
        moved = {
            name: ipywidgets.SelectionSlider(
                options=[(f"{value}", value) for value in values],
                value=self.start[name],
                description=name,
                continuous_update=False,
            )
            for name, values in self.choices.items()
        }

        def again(_: Any = None) -> None:
            try:
                figure = self.draw(**{name: slider.value for name, slider in moved.items()})
                image.value, words.value = figure._repr_png_()[0], ""
            except (ValueError, MemoryError, ArithmeticError) as error:  # such a choice is refused
                words.value = html.words(str(error))

        for slider in moved.values():
            slider.observe(again, "value")
        again()
        return ipywidgets.VBox([*moved.values(), words, image])


def sliders(
    draw: Callable[..., Any], start: Mapping[str, Any] | None = None, /, **choices: Sequence[Any]
) -> _Sliders:
    """``draw(**values)``, a figure of td.plots, with a slider for each of ``choices``; drawn when
    one is moved.

    ``start`` has the values to begin with, where they are not the first. What ``draw`` refuses is
    said in place of the figure. Where there is no kernel, on a page, the figure stays as it began.

    >>> import tiledask as td
    >>> def idle(m):
    ...     return td.plots.gantt(td.simulate("1f1b", 4, m))
    >>> sliders(idle, {"m": 8}, m=[1, 2, 4, 8]).start
    {'m': 8}
    """
    begun = {name: values[0] for name, values in choices.items()} | dict(start or {})
    return _Sliders(draw, choices, begun)
