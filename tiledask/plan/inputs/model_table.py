"""A model as a table for notebooks: what it is made of, and how many parameters that is."""

from html import escape
from typing import TYPE_CHECKING

from tiledask.plan.inputs.weights import Weight, count, unvisited

if TYPE_CHECKING:
    from tiledask.plan.inputs.model import Model

__all__ = ["model_html"]


def model_html(model: "Model") -> str:
    """An HTML table with a row per item; a mixture also shows what one token uses.

    >>> from tiledask.plan.inputs.specs import load_model
    >>> "<td>layer</td>" in model_html(load_model("gpt2"))
    True
    """
    names = ["item", "how many", "each", "parameters"] + ["active"] * bool(model.experts)
    head = "".join(f"<th>{name}</th>" for name in names)
    items = [("embedding", 1, model.embedding), *model.layer_kinds, ("head", 1, model.head)]
    rows = "".join(_row(name, _numbers(n, weights), len(names)) for name, n, weights in items)
    total = ("", "", model.parameters, model.active_parameters)
    rows += _row("<b>all</b>", total, len(names))
    if model.mtp_layers and not model.with_mtp:
        numbers = _numbers(model.mtp_layers, model.mtp_module)
        rows += _row("<i>multi-token prediction, not counted</i>", numbers, len(names))
    return (
        f"<table><caption>{escape(repr(model))}</caption><tr>{head}</tr>{rows}</table>"
        f"<p><small>{escape(model.source)}</small></p>"
    )


def _numbers(n: int, weights: tuple[Weight, ...]) -> tuple[int, ...]:
    each = count(weights)
    return n, each, n * each, n * (each - unvisited(weights))


def _row(name: str, numbers: tuple, columns: int) -> str:
    cells = "".join(
        f"<td style='text-align:right'>{x:,}</td>" if x != "" else "<td></td>"
        for x in numbers[: columns - 1]
    )
    return f"<tr><td>{name}</td>{cells}</tr>"
