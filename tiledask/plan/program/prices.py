"""Seconds of every instruction of a training's program on a device: what the clock is given.

    linear        a product's waves of tiles           attention     the fused core, or the eager
    add, gelu     bytes over the memory's bandwidth    all_reduce    bytes over the ring's links

The conventions of plan/timing, instruction by instruction: what kernels are fused with others
costs nothing, a collective is as long as the calibration leaves of it exposed, and in FP8 run the
layers' products alone.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from math import prod

from tiledask.plan.inputs.hardware import ClusterSpec
from tiledask.plan.inputs.recipes import Recipe
from tiledask.plan.pipelines.timeline import COMPUTE
from tiledask.plan.program.instructions import (
    COMPUTE_STREAM,
    Collective,
    Do,
    Instructions,
    ProgramRole,
    buffer_of,
)
from tiledask.plan.program.making.layers import TENSOR
from tiledask.plan.program.making.unit_states import DATA
from tiledask.plan.timing.calibration import Calibration, calibration_of
from tiledask.plan.timing.collective_time import all_gather
from tiledask.plan.timing.layer_time import weight_gradient
from tiledask.plan.timing.rates import rates_of
from tiledask.plan.timing.roofline import Rates, gemm_seconds, memory_seconds

__all__ = ["Prices", "prices_of"]

FUSED = {"add_bias", "hand_on", "rotate", "rotate_grad", "ids", "targets", "largest_logit", "loss",
         "add_loss", "guard", "advance", "columns", "put_columns", "pack"}  # fmt: skip
"""Kernels that others do on the way, or that handle a few numbers."""
HEAD, LAYERS = re.compile("(head|embedding)"), re.compile("/(attention|mlp)/")
"""In the name of a head's weight; in the label of what layers send."""
PASSES = {"loss_sums": 24, "logits_grad": 12}
"""Bytes that the loss moves for each logit, beside the logit itself, in single precision."""


@dataclass(frozen=True)
class Prices:
    """What the instructions of a program cost on a cluster's devices."""

    cluster: ClusterSpec
    rates: Rates
    product_rates: Rates
    """Of the layers' products; ``rates``: of all else."""
    calibration: Calibration
    width: int
    """Bytes of a number of activations."""
    operand: int
    """Of a number that the layers' products multiply."""
    gradient: int
    """Bytes of a weight's gradient where it is added up."""
    flash: bool

    def kernels(self, program: Instructions) -> Callable[[Do], float]:
        """The seconds of each kernel of ``program``, which is not to be changed."""
        found = {
            id(each): self._kernel(role, each, heads) * self._passes(part.kind, each)
            + self._host(each)
            for role in program.roles
            for heads in [_head_shapes(role)]
            for part in role.parts
            for each in part.instructions
            if isinstance(each, Do)
        }
        return lambda each: found[id(each)]

    def _host(self, each: Do) -> float:
        """Seconds of launches and of the host, by layer: a layer has one core each way."""
        known = self.calibration
        layer = known.launch_layer + known.layer_seconds
        return {
            "attention": layer / 3,
            "attention_grad": layer * 2 / 3,
            "advance": known.step_seconds,
        }.get(each.kernel, 0.0)

    def _passes(self, kind: str, each: Do) -> float:
        """How often a pass over memory is done by kernels that are not fused."""
        if each.kernel in PASSES:
            return self.calibration.loss_passes
        known = kind in COMPUTE and "product" not in dict(each.options)
        return self.calibration.eager_passes if known and each.kernel != "accumulate" else 1.0

    def _kernel(self, role: ProgramRole, each: Do, heads: frozenset[tuple[int, int]]) -> float:
        told, rates = dict(each.options), self.rates
        if each.kernel in FUSED:
            return 0.0
        if each.kernel in ("attention", "attention_weights", "attention_grad"):
            return self._attention(each.kernel, *told["product"])
        if each.kernel == "linear_grad_weight":
            k, tokens, n = told["product"]
            rates, width, cast = self._product((k, n) in heads)
            of, added = (tokens, k, n, rates, width), self.calibration.adds_gradients
            back = weight_gradient(*of, self.gradient, added=added)
            return float(back + memory_seconds(cast * tokens * n, rates))
        if "product" in told:
            m, k, n = told["product"]
            into = each.kernel == "linear"
            rates, width, cast = self._product(((k, n) if into else (n, k)) in heads)
            moved = cast * m * k if into else 0.0
            return float(gemm_seconds(m, k, n, rates, width) + memory_seconds(moved, rates))
        if each.kernel == "accumulate" and "[" in each.reads[0]:
            return 0.0  # of a weight's gradient, which was priced with its product
        if each.kernel in PASSES:
            logits = self._size(role, each.reads[0])
            return float(memory_seconds((PASSES[each.kernel] / self.width + 1) * logits, rates))
        moved = sum(self._size(role, name) for name in (*each.reads, *each.writes))
        return float(memory_seconds(1.0 * moved, rates))

    def _product(self, of_head: bool) -> tuple[Rates, int, float]:
        """Rates of a product, bytes of its operands, and bytes that cast a number to them."""
        if of_head:
            return self.rates, self.width, 0.0
        cast = 4.0 * self.calibration.casts if self.operand != self.width else 0.0
        return self.product_rates, self.operand, cast

    def _attention(self, kernel: str, heads: int, tokens: int, width: int) -> float:
        rates, both, scores = self.rates, 2, 1.0 * heads * tokens * tokens
        turned = memory_seconds(2.0 * self.width * heads * tokens * width, rates)
        if self.flash:
            flop = 2.0 * scores * width
            if kernel == "attention":
                filled = 1 + rates.flash_fill / (heads * tokens / 128)
                return float(filled * flop / rates.flash + turned)
            return float(2.5 * flop / rates.flash_backward + turned)
        forward = both * gemm_seconds(tokens, width, tokens, rates, self.width, heads)
        forward += memory_seconds(2 * self.width * scores, rates)
        if kernel == "attention_weights":
            return float(forward)
        if kernel == "attention":
            return float(forward + turned)
        back = 2 * both * gemm_seconds(tokens, tokens, width, rates, self.width, heads)
        back += memory_seconds(3 * self.width * scores, rates)
        return float(back + turned)

    @staticmethod
    def _size(role: ProgramRole, name: str) -> int:
        buffer = buffer_of(name)
        if buffer == name:
            return role.size(name)
        items, whole = dict(role.items[buffer]), role.size(buffer)
        return whole * prod(items[name[len(buffer) + 1 : -1]]) // sum(map(prod, items.values()))

    def collective(
        self, mesh: tuple[int, ...], exposed: bool = True, copies: str = "dp"
    ) -> Callable[[Collective], float]:
        """The seconds of each collective of a program on ``mesh``; ranks stand as Megatron-LM
        orders them: tp within a node, then dp, then pp. ``exposed``: of those on the stream of the
        work, as much as the calibration found waited for, of those among ``copies`` as of "dp" or
        "fsdp"; else all of it, which streams may hide."""
        dp, tp, _ = mesh
        stride, known = {TENSOR: 1, DATA: tp}, self.calibration

        def seconds(each: Collective) -> float:
            n, whole = len(each.counts), 1.0 * sum(each.counts) * each.itemsize
            apart = stride.get(each.axes[0], tp * dp) if len(each.axes) == 1 else 1
            rings = 2 if each.kind == "all_reduce" else 1
            waits = exposed and each.stream == COMPUTE_STREAM
            part = self._exposed(each, copies) if waits else 1.0
            own = known.own_adapter and each.axes == (DATA,)
            whole /= known.copies_share if each.axes == (DATA,) else 1.0
            took = rings * part * float(all_gather(whole, n, apart, self.cluster, own))
            in_layer = each.axes == (TENSOR,) and n > 1 and bool(LAYERS.search(each.label))
            return took + in_layer * (known.launch_collective + known.launch_rank * (n - 1))

        return seconds

    def _exposed(self, each: Collective, copies: str) -> float:
        """The part of a collective that the calibration found waited for."""
        of = self.calibration
        if each.axes == (DATA,):
            return of.waits(copies)
        if each.axes != (TENSOR,):
            return 1.0
        behind = each.label.endswith("/backward") and "/" in each.label
        kind = "sum" if each.kind == "all_reduce" else "tp"
        return of.waits(f"{kind}_backward" if behind else kind)


def prices_of(
    cluster: ClusterSpec,
    recipe: Recipe,
    flash: bool,
    calibration: str | Calibration | None = None,
    framework: str | None = None,
) -> Prices:
    """The Prices of ``cluster`` for a recipe's numbers."""
    shares = calibration_of(cluster.device, recipe, calibration, framework)
    operand = recipe.operand_bytes
    rates, products = (rates_of(cluster.device, recipe, shares, each) for each in (0, operand))
    width, gradient = recipe.compute_bytes, recipe.gradient_bytes
    return Prices(cluster, rates, products, shares, width, operand, gradient, flash)


def _head_shapes(role: ProgramRole) -> frozenset[tuple[int, int]]:
    """(inputs, columns) of the products that make logits; no layer's has as many columns."""
    return frozenset(
        dict(each.options)["product"][1:]
        for part in role.parts
        for each in part.instructions
        if isinstance(each, Do) and each.kernel == "linear" and HEAD.search(each.reads[1])
    )
