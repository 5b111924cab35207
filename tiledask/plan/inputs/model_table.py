"""A model as a table for notebooks: what it is made of, and how many parameters that is."""

from typing import TYPE_CHECKING

from tiledask.plan import html
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
    items = [("embedding", 1, model.embedding), *model.layer_kinds, ("head", 1, model.head)]
    rows = [_row(name, _numbers(n, weights), len(names)) for name, n, weights in items]
    total = ("", "", model.parameters, model.active_parameters)
    rows.append(_row("all", total, len(names)))
    bold = (len(rows) - 1,)
    if model.mtp_layers and not model.with_mtp:
        numbers = _numbers(model.mtp_layers, model.mtp_module)
        rows.append(_row("multi-token prediction, not counted", numbers, len(names)))
    style = dict.fromkeys(range(1, len(names)), "text-align:right")
    found = html.table(names, rows, repr(model), style=style, bold=bold)
    return f"{found}<p><small>{html.words(model.source)}</small></p>"


def _numbers(n: int, weights: tuple[Weight, ...]) -> tuple[int, ...]:
    each = count(weights)
    return n, each, n * each, n * (each - unvisited(weights))


def _row(name: str, numbers: tuple, columns: int) -> tuple[str, ...]:
    return (name, *(f"{x:,}" if x != "" else "" for x in numbers[: columns - 1]))
