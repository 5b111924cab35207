"""The account of one training step: seconds by what they go to, with formulas and sources."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import hypot
from typing import Any

from tiledask.plan.data import shipped_json
from tiledask.plan.inputs.framework_memory import memory_of
from tiledask.plan.inputs.hardware import ClusterSpec
from tiledask.plan.inputs.layout import Layout
from tiledask.plan.inputs.model import Model
from tiledask.plan.inputs.recipes import Recipe
from tiledask.plan.inputs.run import precision_of
from tiledask.plan.pipelines.schedules import BOTH_WAYS
from tiledask.plan.tables import Part, Printable, table
from tiledask.plan.timing.budget import Budget, budget
from tiledask.plan.timing.calibration import Calibration
from tiledask.plan.timing.step_time import PARTS
from tiledask.plan.units import format_seconds

__all__ = ["StepEstimate"]

ACCOUNT: list[dict[str, str]] = shipped_json("step_parts.json")
"""Of each part of a step its formula and where that is from, in words."""
OTHER_PROGRAMS = 0.35
"""How much longer programs and releases take that nobody named: of 292 published runs, estimated
with none named, 92 % lie in the band."""


@dataclass(frozen=True, repr=False, kw_only=True)
class StepEstimate(Printable):
    """Seconds of one training step on the stage that the others wait for; the parts add up to
    ``total``. All of them but the first two and the last are waiting."""

    compute: float  # products, attention core and element-wise kernels, forward and backward
    recompute: float  # what the backward pass computes again
    tp: float  # for tensor-parallel collectives
    cp: float  # for keys and values of other pieces of the sequence
    ep: float  # for tokens on their way to experts and back
    pp: float  # for transfers between stages
    dp: float  # for gradients (and ZeRO's weights) of the copies of the model, and of its stages
    bubble: float  # of the slowest stage while the pipeline is not yet filled, or draining
    optimizer: float  # updating the weights
    model: Model
    layout: Layout
    cluster: ClusterSpec
    recipe: Recipe
    sequence: int
    calibration: Calibration
    layer_seconds: tuple[float, float]
    """Seconds of one micro-batch in the mean layer, with its collectives: (forward, backward)."""

    @cached_property
    def total(self) -> float:
        """Seconds of the step."""
        return float(sum(getattr(self, name) for name in PARTS))

    @cached_property
    def flops(self) -> float:
        """FLOP that the model needs, over all devices, forward and backward, all s x s scores
        counted.

        A matrix of P parameters costs 2 P a token forward and 4 P backward, 2 P where it is frozen
        beside adapters; scores and context of s tokens 2 s (d_qk + d_v) a token and head forward,
        and twice that backward; of sparse attention those that a token sees: of a GPT
        72 B L s h^2 (1 + s/6h + V/12hL), Korthikanti et al. 2022 (arXiv:2205.05198), Appendix A.
        """
        model, layers, core = self.model, 0.0, 0.0
        further = model.mtp_layers
        for at, kind in enumerate(model.layer_kinds):
            many = kind.many + further * (at == model.kind_of[-1])
            layers += many * sum(w.units * w.size * w.active for w in kind.weights if w.inputs)
            for one in kind.cores:
                flop = one.flop
                if one.visible is not None:
                    seen = one.visible(self.sequence) if one.sparse else 1
                    flop = 2.0 * self.sequence * seen * (one.qk + one.v)
                core += 3 * many * one.heads * flop
        ends = (1 + further) * model.hidden * model.vocab + 2 * further * model.hidden**2
        each = (6 if self.recipe.gradient_bytes else 4) * (layers + ends) + core
        return self.layout.sequences * self.sequence * each

    @property
    def mfu(self) -> float:
        """Model FLOP utilisation, all scores counted."""
        device = self.cluster.device
        peak = device.peak(precision_of(device, self.recipe))
        return float(self.flops / (self.total * self.layout.devices * peak))

    @property
    def doubts(self) -> dict[str, float]:
        """The relative errors that add up, in quadrature, to ``error``."""
        found, layout = dict(self.calibration.errors), self.layout
        if not self.calibration.named:
            found["framework and release not named"] = 0.05
        if self.model.unchecked:
            # what covers 8 published runs of hybrids: tests/oracles/hybrid_runs.json
            found[f"layers of {self.model.unchecked}, whose time no run has fitted"] = 0.35
        if layout.pp > 1 and layout.microbatches < 2 * layout.pp:
            found["fewer than 2 micro-batches a stage"] = 0.10
        return found

    @property
    def error(self) -> float:
        """Relative error of ``total`` that nine of ten steps stay within."""
        return hypot(*self.doubts.values())

    @property
    def off(self) -> tuple[float, float]:
        """Shares of ``total`` that nine of ten steps take less at most, and more."""
        return self.error, self.error + OTHER_PROGRAMS * (not self.calibration.named)

    @property
    def band(self) -> tuple[float, float]:
        """Seconds between which nine of ten steps lie."""
        less, more = self.off
        return self.total * (1 - less), self.total * (1 + more)

    @property
    def within(self) -> str:
        """The band in words."""
        less, more = (f"{100 * share:.0f} %" for share in self.off)
        return f"within {less}" if less == more else f"{less} less to {more} more"

    @property
    def assumed(self) -> str:
        """Which files the estimate rests on, why, its error and what dominates that."""
        known, doubts, fullest = self.calibration, self.doubts, self.model.imbalance
        words = f"{known.name} ({known.why})"
        words += "" if known.scale == 1 else f", times {known.scale:.3g}"
        if self.model.experts:
            spread = f"{fullest:g} x the mean on the fullest" if fullest > 1 else "spread evenly"
            words += f", experts' tokens {spread}"
        words += f": {self.within}, most of it: {max(doubts, key=doubts.get)}"  # type: ignore[arg-type]
        words += "; name yours, older ones take longer" * (not known.named)
        words += "".join(f"; {note}" for note in self.model.notes)
        if saved := memory_of(known.framework).uncounted:
            words += f"; its memory may be less than td.fits says, by {saved}"
        return words

    @property
    def tokens_per_second(self) -> float:
        """Over all devices."""
        return float(self.layout.sequences * self.sequence / self.total)

    def budget(self, tokens: float, price: float | None = None, stretch: float = 1.0) -> Budget:
        """Days, device-hours and money for ``tokens`` tokens, at ``price`` an hour of a device;
        ``stretch``: wall time over the work's, for savings and losses."""
        devices = self.layout.devices
        return budget(tokens, self.tokens_per_second, devices, self.off, price, stretch)

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Where the time goes, part by part: its name, seconds, formula and source."""
        layout, both_ways = self.layout, self.layout.schedule in BOTH_WAYS
        words = {
            "s": self,
            "copies": layout.dp * layout.cp,
            "how": ", simulated over the stages as they are" * (layout.pp > 1),
            "hides": ", less what runs beside another micro-batch" * both_ways,
            "replicas": "; and over the 2 devices of each stage, beside nothing" * both_ways,
        }
        lines = [{key: text.format(**words) for key, text in row.items()} for row in ACCOUNT]
        return [{"seconds": getattr(self, row["part"]), **row} for row in lines]

    def to_dict(self) -> dict[str, Any]:
        """Where the time of a step goes, as plain values for JSON."""
        names = ("mfu", "tokens_per_second", "assumed", "error")
        facts = {"seconds": self.total, "parts": {row["part"]: row["seconds"] for row in self.rows}}
        return facts | {name: getattr(self, name) for name in names}

    def __repr__(self) -> str:
        return (
            f"StepEstimate({format_seconds(self.total)} a step on {self.layout.devices} x "
            f"{self.cluster.device.name}, MFU {100 * self.mfu:.1f} %, "
            f"{self.tokens_per_second:,.0f} tokens/s)"
        )

    @property
    def line(self) -> str:
        """Seconds, tokens/s and MFU."""
        layout, many = self.layout, self.layout.sequences
        step = f"{many:,} sequence{'s' * (many > 1)} of {self.sequence:,} tokens"
        if layout.pp > 1 and layout.microbatches < layout.pp:
            filled = f"{layout.microbatches} of {layout.pp} micro-batches"
            step += f" ({filled} that would fill its stages)"
        elif layout.microbatches > 1:
            step += f" ({layout.microbatches:,} micro-batches a copy)"
        return (
            f"a step of {step} takes {format_seconds(self.total)}: {self.tokens_per_second:,.0f} "
            f"tokens/s, MFU {100 * self.mfu:.1f} %, {self.within}"
        )

    def printed(self) -> Iterator[Part]:
        """Where the time of a step goes, and what is assumed."""
        found = ((row["part"], row["seconds"], row["formula"]) for row in self.rows)
        rows = [
            {"part": part, "time": seconds, "share": seconds / self.total, "formula": formula}
            for part, seconds, formula in found
            if seconds
        ]
        title = f"where the {format_seconds(self.total)} of a step go, MFU {100 * self.mfu:.1f} %"
        yield table(rows, title, time="seconds", share="percent")
        yield f"assumed: {self.assumed}"
