"""A linear layer on a grid of p x q ranks, written into a program: x, w and y in blocks.

    panels of w's rows and x's columns, one after the other:
        x0 = do take x        on the panel's column of the grid; on its row: w0 = do take w
        x1 = broadcast x0     along the row of ranks
        w1 = broadcast w0     along the column of ranks
        y1 = do add_product x1 w1 y0

Backward the panels come once more, and what is found for each is a sum that ends at its owner.
With a third axis each of d grids has a d-th of the tokens and its own copy of w.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from tiledask.plan.collectives.cost import even
from tiledask.plan.collectives.panels import Panel, panels
from tiledask.plan.program.making.layers import LayerWeights
from tiledask.plan.program.making.writer import Gradients, ProgramWriter, Value

__all__ = ["GridLayers"]

DEPTH, COLUMN, ROW = -3, -2, -1
"""The axis of the mesh along which the ranks of all grids in one place, of a column, of a row are."""  # noqa: E501


@dataclass(frozen=True)
class GridLayers:
    """The layers on one rank of a mesh (p, q) or (d, p, q)."""

    writer: ProgramWriter
    weights: LayerWeights
    mesh: tuple[int, ...]
    at: tuple[int, ...]
    """Its coordinates."""

    def summa_linear(self, x: Value, label: str, inputs: int) -> Value:
        """x w + b; x has ``inputs`` columns in all."""
        writer, w = self.writer, self.weights.weight("", "w")
        bias = self.weights.has("", "b")
        lead, columns = x.shape[:-1], w.shape[1]
        cut = list(panels(inputs, self.mesh[COLUMN], self.mesh[ROW]))
        total = writer.value("y", (*lead, columns), writer.wide)
        writer.do("no_product", (x,), (total,), columns=columns)
        for panel in cut:
            columns_of_x = self._x_panel(x, panel, f"{label}/forward")
            rows_of_w = self._w_panel(w, panel, f"{label}/forward")
            more = writer.value("y", total.shape, writer.wide)
            product = prod(lead), panel.extent, columns
            writer.do("add_product", (columns_of_x, rows_of_w, total), (more,), product=product)
            total = more
        y = writer.value("y", (*lead, columns))
        reads = (total, x, self.weights.weight("", "b")) if bias else (total, x)
        writer.do("rounded_sum", reads, (y,))

        def rule(dy: Value) -> Gradients:
            way, of_x, of_w = f"{label}/backward", list[Value](), list[Value]()
            for panel in cut:
                rows_of_w = self._w_panel(w, panel, way)
                dx = writer.value("dx", (*lead, panel.extent))
                product = prod(lead), columns, panel.extent
                writer.do("linear_grad_input", (dy, rows_of_w), (dx,), product=product)
                of_x += self._summed(dx, way, ROW, panel.column)
                columns_of_x = self._x_panel(x, panel, way)
                dw = writer.value("dw", (panel.extent, columns))
                product = panel.extent, prod(lead), columns
                writer.do("product_grad_weight", (dy, columns_of_x), (dw,), product=product)
                of_w += self._summed(dw, way, COLUMN, panel.row)
            dx, dw = self._joined(of_x, x, -1), self._joined(of_w, w, 0)
            found = {"w": dw}
            if bias:
                db = writer.value("db", (columns,))
                writer.do("sum_tokens", (dy,), (db,))
                found["b"] = self._everywhere(db, way, COLUMN)
            for name, g in found.items():
                self.weights.gradient("", name, self._everywhere(g, way, DEPTH))
            return [(x, dx)]

        return writer.on_tape(y, rule)

    # -- between the ranks ----------------------------------------------------------------------

    def _x_panel(self, x: Value, panel: Panel, way: str) -> Value:
        """[.., panel], from its owner in this row."""
        shape = *x.shape[:-1], panel.extent
        return self._panel(x, way, ROW, panel.column, panel.of_x, -1, shape)

    def _w_panel(self, w: Value, panel: Panel, way: str) -> Value:
        """[panel, columns here], from its owner in this column."""
        shape = panel.extent, w.shape[1]
        return self._panel(w, way, COLUMN, panel.row, panel.of_w, 0, shape)

    def _panel(
        self,
        x: Value,
        way: str,
        axis: int,
        root: int,
        place: slice,
        dim: int,
        shape: tuple[int, ...],
    ) -> Value:
        mine = None
        if self.at[axis] == root:
            mine = self.writer.value("panel", shape, x.itemsize)
            ends = place.start, place.stop
            self.writer.do("take", (x,), (mine,), dim=dim, ends=ends)
        if mine and self.mesh[axis] == 1:
            return mine
        y = self.writer.value("panel", shape, x.itemsize)
        return self.writer.broadcast(mine, y, way, root=root, **self._among(y, axis))

    def _summed(self, x: Value, way: str, axis: int, root: int) -> list[Value]:
        """The sum along an axis on its root; nothing elsewhere."""
        if self.mesh[axis] == 1:
            return [x]
        y = self.writer.value("total", x.shape, x.itemsize) if self.at[axis] == root else None
        self.writer.reduce(x, y, way, root=root, **self._among(x, axis))
        return [y] if y else []

    def _everywhere(self, x: Value, way: str, axis: int) -> Value:
        if len(self.mesh) < -axis or self.mesh[axis] == 1:
            return x
        return self.writer.all_reduce(x, way, **self._among(x, axis))

    def _among(self, x: Value, axis: int) -> dict[str, Any]:
        return {"axes": (len(self.mesh) + axis,), "counts": even(x.size, self.mesh[axis])}

    def _joined(self, parts: Sequence[Value], like: Value, dim: int) -> Value:
        """The panels of what is owned here, one behind the other; there may be none."""
        if len(parts) == 1:
            return parts[0]
        y = self.writer.value("joined", like.shape, like.itemsize)
        if parts:
            self.writer.do("join", parts, (y,), dim=None if dim == -1 else dim)
        else:
            self.writer.do("take", (like,), (y,), dim=dim, ends=(0, 0))
        return y
