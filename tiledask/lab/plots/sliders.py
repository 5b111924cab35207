"""A figure that is drawn again when the reader moves a slider; without a kernel, one of them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tiledask.errors import ConfigError
from tiledask.extras import needed_for
from tiledask.plan import html

__all__ = ["Sliders", "sliders"]


@dataclass(frozen=True, repr=False)
class Sliders:
    """A figure and what it is drawn of; a notebook shows it with its sliders."""

    draw: Callable[..., Any]
    choices: Mapping[str, Sequence[Any]]
    start: Mapping[str, Any]

    def figure(self, **moved: Any) -> Any:
        """The figure at the start, or with sliders ``moved``."""
        return self.draw(**{**self.start, **moved})

    def __repr__(self) -> str:
        at = ", ".join(f"{name} = {value}" for name, value in self.start.items())
        return f"{self.figure()!r} | with sliders, here at {at}"

    def _repr_mimebundle_(self, **_options: Any) -> dict[str, Any]:
        shown = self._widget()._repr_mimebundle_()
        bundle = dict(shown[0] if isinstance(shown, tuple) else shown)
        # what a page shows that has no kernel
        return {**bundle, "text/plain": repr(self), "image/png": _png(self.figure())}

    def _widget(self) -> Any:
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
                figure = self.figure(**{name: slider.value for name, slider in moved.items()})
                image.value, words.value = _png(figure), ""
            except (ValueError, MemoryError, ArithmeticError) as error:  # such a choice is refused
                words.value = html.words(str(error))

        for slider in moved.values():
            slider.observe(again, "value")
        again()
        return ipywidgets.VBox([*moved.values(), words, image])


def sliders(
    draw: Callable[..., Any], start: Mapping[str, Any] | None = None, /, **choices: Sequence[Any]
) -> Sliders:
    """``draw(**values)``, a figure, with a slider for each of ``choices``; drawn when one is moved.

    ``start`` has the values to begin with, where they are not the first. What ``draw`` refuses is
    said in place of the figure. Where there is no kernel, on a page, the figure stays as it began.

    >>> import tiledask as td
    >>> def idle(m):
    ...     return td.plots.gantt(td.simulate("1f1b", 4, m))
    >>> sliders(idle, {"m": 8}, m=[1, 2, 4, 8]).start
    {'m': 8}
    """
    if not choices or not all(len(values) for values in choices.values()):
        raise ConfigError(
            "sliders need 1 or more, each with 1 value or more; sliders(draw, m=[1, 2, 4]) has one"
        )
    begun = {name: values[0] for name, values in choices.items()} | dict(start or {})
    for name, value in begun.items():
        if value not in choices.get(name, ()):
            raise ConfigError(f"the start {name} = {value!r} is no value of a slider here")
    return Sliders(draw, choices, begun)


def _png(figure: Any) -> bytes:
    from tiledask.lab.plots.picture import png_of, shown_dpi

    return png_of(figure, shown_dpi())
