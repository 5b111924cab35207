"""Peaks of many layouts at once: layouts as columns of numbers, and the ledger's arithmetic.

layouts x 1  ->  combinations of (tp, cp, ...) that occur, each costed once  ->  layouts x 1

What depends on few fields (a layer's tensors on tp, cp, ...) is costed by the ledger's own
functions, once for each combination that occurs; the rest is arithmetic over columns.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import numpy as np

from tiledask.errors import ConfigError
from tiledask.plan.fitting.activations import cut_tokens, gradient_bytes, layer_bytes, local_tokens
from tiledask.plan.fitting.in_flight import alive
from tiledask.plan.fitting.states import chunk_kinds, item_numbers
from tiledask.plan.inputs.layout import RECOMPUTE, SELECTIVE_OP, Layout
from tiledask.plan.inputs.model import Model
from tiledask.plan.inputs.recipes import Recipe, load_recipe
from tiledask.plan.inputs.run import check_run

__all__ = ["KINDS", "ORDERS", "Many", "peaks"]

KINDS = (*RECOMPUTE, SELECTIVE_OP)
"""Kinds of recomputation; a column holds positions in them."""
ORDERS = ("naive", "gpipe", "1f1b")
"""Schedules, likewise."""


def _up(a: np.int64 | np.ndarray, b: np.ndarray) -> np.ndarray:
    """a / b, rounded up."""
    up: np.ndarray = -(-a // b)
    return up


@dataclass(frozen=True, eq=False)
class Many:
    """Layouts as columns; every method returns a column."""

    model: Model
    recipe: Recipe
    sequence: int
    n: dict[str, np.ndarray]

    def __post_init__(self) -> None:
        n = self.n

        def check(tp: int, cp: int, ep: int) -> tuple[int]:
            check_run(self.model, Layout(tp=tp, cp=cp, ep=ep, dp=ep), self.sequence)
            return (0,)

        def check_pipe(pp: int, interleave: int, schedule: int) -> tuple[int]:
            self._pipeline(pp, interleave, pp, schedule).chunk_layers(self.model.layers)
            return (0,)

        self.each({name: n[name] for name in ("tp", "cp", "ep")}, check)
        self.each({name: n[name] for name in ("pp", "interleave", "schedule")}, check_pipe)
        uneven = (n["dp"] * n["cp"] % n["ep"] > 0) | (
            (n["interleave"] > 1) & (n["microbatches"] % n["pp"] > 0)
        )
        if uneven.any():
            row = {name: column[uneven][0].item() for name, column in n.items()}
            row |= {"schedule": ORDERS[row["schedule"]], "recompute": KINDS[row["recompute"]]}
            Layout(**{name: row[name] for name in row if not name.endswith(("parallel", "tion"))})

    def each(
        self, columns: dict[str, np.ndarray], function: Callable[..., tuple[int, ...]]
    ) -> list[np.ndarray]:
        """``function`` of every combination of ``columns`` that occurs, spread over the
        layouts: a column for each number that it returns."""
        tops = [int(column.max()) + 1 for column in columns.values()]
        if prod(tops) >= 2**62:
            found_at = {name: np.unique(c, return_inverse=True) for name, c in columns.items()}
            values = {name: value for name, (value, _) in found_at.items()}
            return self.each(
                {name: at for name, (_, at) in found_at.items()},
                lambda **at: function(**{k: values[k][i].item() for k, i in at.items()}),
            )
        code = np.ravel_multi_index(tuple(columns.values()), tops)
        if prod(tops) <= 2**22:
            there = np.zeros(prod(tops), np.bool_)
            there[code] = True
            found, code = np.flatnonzero(there), (np.cumsum(there) - 1)[code]
        else:
            found, code = np.unique(code, return_inverse=True)
        rows = zip(*(column.tolist() for column in np.unravel_index(found, tops)), strict=True)
        results = [function(**dict(zip(columns, row, strict=True))) for row in rows]
        return [np.array(values, np.int64)[code] for values in zip(*results, strict=True)]

    @cached_property
    def unequal(self) -> int:
        """Stages that may hold fewer mixtures than a later one."""
        dense = self.model.dense_layers if self.model.experts else ()
        if not dense:
            return 1
        chunks = self.n["pp"] * self.n["interleave"]
        covering = _up(np.int64(max(dense) + 1), np.maximum(1, self.model.layers // chunks)) + 1
        return int(np.minimum(covering, self.n["pp"]).max())

    # --- what one combination costs; the plain functions of the ledger ---------------------

    def _flight(
        self, pp: int, interleave: int, microbatches: int, schedule: int, stage: int, cost: int
    ) -> tuple[int, ...]:
        """Layers of each kind on the stage, in flight, and micro-batches of the two ends."""
        layout = self._pipeline(pp, interleave, microbatches, schedule)
        kinds = chunk_kinds(self.model, layout)
        chunks = [kinds[c] for c in layout.stage_chunks(stage)]
        states = alive(layout, stage)
        held = [
            tuple(sum(n * kind[k] for n, kind in zip(state, chunks, strict=True)) for k in (0, 1))
            for state in states
        ]
        a, b = self.cost[1][cost]
        dense, mixtures = max(held, key=lambda s: s[0] * a + s[1] * b)
        ends = (max(state[at] for state in states) for at in (0, -1))
        return (sum(d for d, _ in chunks), sum(m for _, m in chunks), dense, mixtures, *ends)

    def _pipeline(self, pp: int, interleave: int, microbatches: int, schedule: int) -> Layout:
        return Layout(
            pp=pp, interleave=interleave, microbatches=microbatches, schedule=ORDERS[schedule]
        )

    @cached_property
    def cost(self) -> tuple[np.ndarray, list[tuple[int, int]]]:
        """Bytes kept of a dense layer and of a mixture, as they occur, and which of them a
        layout has: it decides which state of an interleaved schedule is the fullest."""
        if not self.model.experts:
            return np.zeros_like(self.n["pp"]), [(1, 0)]
        pairs = np.stack([self.layer[0], self.layer[4]], axis=1)
        found, at = np.unique(pairs, axis=0, return_inverse=True)
        return at.ravel(), [(int(dense), int(mixture)) for dense, mixture in found]

    @cached_property
    def layer(self) -> list[np.ndarray]:
        """Of a dense layer and of a mixture, for one sequence: bytes kept, all, gradients."""

        def layer(
            tp: int, cp: int, sequence_parallel: int, recompute: int, flash_attention: int
        ) -> tuple[int, ...]:
            layout = Layout(
                tp=tp,
                cp=cp,
                sequence_parallel=bool(sequence_parallel),
                recompute=KINDS[recompute],
                flash_attention=bool(flash_attention),
            )
            numbers: list[int] = []
            for mixture in (False, self.model.experts > 0):
                common = self.model, layout, self.sequence, self.recipe.compute_bytes
                numbers += [
                    layer_bytes(*common, mixture=mixture),
                    layer_bytes(*common, "none", mixture=mixture),
                    gradient_bytes(*common, mixture),
                    layer_bytes(*common, "none", masks=False, mixture=mixture),
                ]
            return tuple(numbers)

        names = ("tp", "cp", "sequence_parallel", "recompute", "flash_attention")
        return self.each({name: self.n[name] for name in names}, layer)

    @cached_property
    def sizes(self) -> list[np.ndarray]:
        """Of dense layer, mixture, embedding, head, tied copy: dense and expert parameters,
        those of adapters, and the largest weight."""
        kinds = {name: weights for name, _, weights in self.model.layer_kinds}
        parts = (
            kinds.get("layer") or kinds.get("dense layer", ()),
            kinds.get("mixture layer", ()),
            self.model.embedding,
            self.model.head,
            self.model.tied_copy,
        )

        def sizes(tp: int, ep: int) -> tuple[int, ...]:
            numbers: list[int] = []
            for weights in parts:
                each, adapters, largest = item_numbers(weights, self.recipe, tp, ep)
                numbers += [each.dense, each.expert, adapters.dense, adapters.expert, largest]
            return tuple(numbers)

        return self.each({name: self.n[name] for name in ("tp", "ep")}, sizes)

    @cached_property
    def tokens(self) -> list[np.ndarray]:
        """Of one sequence: those of a device, and those of a tensor that is cut."""

        def tokens(tp: int, cp: int, sequence_parallel: int) -> tuple[int, int]:
            layout = Layout(tp=tp, cp=cp, sequence_parallel=bool(sequence_parallel))
            return local_tokens(layout, self.sequence), cut_tokens(layout, self.sequence)

        names = ("tp", "cp", "sequence_parallel")
        return self.each({name: self.n[name] for name in names}, tokens)

    def flight(self, stage: np.ndarray) -> list[np.ndarray]:
        """What ``_flight`` says of every layout. More micro-batches than fill the pipeline
        change nothing, but under GPipe everything in proportion."""
        n, gpipe = self.n, self.n["schedule"] == ORDERS.index("gpipe")
        several = n["interleave"] > 1
        enough = np.where(several, 4 * n["pp"], np.where(gpipe, 1, n["pp"]))
        columns = {name: n[name] for name in ("pp", "interleave", "schedule")}
        columns |= {
            "microbatches": np.minimum(n["microbatches"], enough),
            "stage": stage,
            "cost": self.cost[0],
        }
        dense, mixtures, *held = self.each(columns, self._flight)
        times = np.where(gpipe, n["microbatches"], 1)
        return [dense, mixtures, *(column * times for column in held)]

    # --- the ledger of one stage -----------------------------------------------------------

    def peak(self, stage: np.ndarray) -> np.ndarray:
        """Bytes on ``stage`` of every layout at its fullest moment."""
        n, recipe, sizes = self.n, self.recipe, self.sizes
        dense, mixtures, kept_dense, kept_mixtures, at_first, at_last = self.flight(stage)
        first, last = stage == 0, stage == n["pp"] - 1
        present = (dense > 0, mixtures > 0, first, last, last & ~first)
        counts = (dense, mixtures, first, last, last & ~first)
        always = self._states(counts)
        width, b = recipe.compute_bytes, n["microbatch"]
        whole, cut = (b * t for t in self.tokens)
        logits = whole * _up(np.int64(self.model.vocab), n["tp"])
        gathered, waiting = self._gathered(present)
        peak: np.ndarray
        if not recipe.trains:
            work = b * np.maximum(present[0] * self.layer[3], present[1] * self.layer[7])
            peak = always + gathered + work + last * width * logits
            return peak
        kept = b * (kept_dense * self.layer[0] + kept_mixtures * self.layer[4])
        per_token = self.model.hidden * (self.model.dropout + width * self.model.embedding_norm)
        kept += first * at_first * per_token * cut
        kept += last * at_last * (1 + (self.model.norm != "none")) * width * self.model.hidden * cut
        gathered_sequence = np.where(
            (n["sequence_parallel"] > 0) & (n["tp"] > 1), width * self.model.hidden * whole, 0
        )
        held = kept + gathered
        forward = held + gathered_sequence + last * 4 * logits * at_last
        loss = last * (held + logits * (4 * at_last + width))
        backward = held + waiting + 2 * gathered_sequence + last * 4 * logits * (at_last - 1)
        backward += b * np.maximum(present[0] * self.layer[2], present[1] * self.layer[6])
        again = np.maximum(present[0] * self.layer[1], present[1] * self.layer[5]) - np.maximum(
            present[0] * self.layer[0], present[1] * self.layer[4]
        )
        backward += np.where(n["recompute"] > 0, b * again, 0)
        largest = np.maximum.reduce([there * sizes[5 * k + 4] for k, there in enumerate(present)])
        moments = {"forward": forward, "loss": loss, "backward": backward}
        for working in recipe.working:
            split = working.of != "logit of a split vocabulary" or n["tp"] > 1
            times = largest if working.of == "largest weight" else last * split * logits
            moments[working.moment] = moments[working.moment] + working.bytes * times
        peak = always + np.maximum.reduce(list(moments.values()))
        return peak

    def _states(self, counts: tuple[np.ndarray, ...]) -> np.ndarray:
        n = self.n
        total: np.ndarray = np.zeros_like(n["dp"])
        copies = n["dp"] * n["cp"]
        for of, at in (("parameters", 0), ("adapters", 2)):
            dense = sum(k * self.sizes[5 * i + at] for i, k in enumerate(counts))
            expert = sum(k * self.sizes[5 * i + at + 1] for i, k in enumerate(counts))
            shard = _up(dense, copies) + _up(expert, copies // n["ep"])
            for state in self.recipe.states:
                if state.of == of:
                    sharded = n["zero"] >= state.zero
                    total = total + state.bytes * np.where(sharded, shard, dense + expert)
        return total

    def _gathered(self, present: tuple[np.ndarray, ...]) -> tuple[np.ndarray, np.ndarray]:
        """Bytes of the weights that ZeRO-3 gathers, and of gradients not reduced yet."""
        n, recipe = self.n, self.recipe
        copies = n["dp"] * n["cp"]
        apart, beside = copies > 1, copies > n["ep"]

        def part(k: int) -> np.ndarray:
            held: np.ndarray = apart * self.sizes[5 * k] + beside * self.sizes[5 * k + 1]
            return held

        head = present[3] * part(3) + present[4] * part(4)
        size = np.maximum.reduce([*(present[k] * part(k) for k in range(3)), head])
        width = recipe.gathered_bytes
        gathers = (n["zero"] == 3) & (not recipe.holds("gathered weights"))
        waits = (n["zero"] >= 2) & (not recipe.holds("unreduced gradients"))
        return gathers * width * size, waits * recipe.gradient_bytes * size


def peaks(
    model: Model,
    recipe: str | Recipe = "mixed-adam-16",
    sequence: int = 2048,
    *,
    dp: Any = 1,
    tp: Any = 1,
    pp: Any = 1,
    cp: Any = 1,
    ep: Any = 1,
    microbatch: Any = 1,
    microbatches: Any = 1,
    zero: Any = 0,
    sequence_parallel: Any = False,
    recompute: Any = "none",
    flash_attention: Any = False,
    schedule: Any = "1f1b",
    interleave: Any = 1,
) -> np.ndarray:
    """Peak bytes on the fullest device of every layout: int64, of the shape that the fields
    have together. Equal to ``estimate_memory(...).peak``, to the byte.

    Only stages that can be the fullest are looked at: of equal layers cut evenly, the first stage
    holds the most of everything but the logits, which are on the last.

    Fields are those of Layout, each one value or an array; layers are cut evenly, and the
    schedules are "naive", "gpipe" and "1f1b", interleaved if there are several chunks. Layouts
    that Layout or the model refuses raise what they raise there.

    >>> from tiledask.plan.inputs.load import load_model
    >>> peaks(load_model("gpt-200b"), tp=8, pp=10, dp=[1, 2, 4], zero=1, recompute="full")
    array([42897432576, 27320503296, 19532038656])
    """
    recipe = load_recipe(recipe)
    given = {
        "dp": dp,
        "tp": tp,
        "pp": pp,
        "cp": cp,
        "ep": ep,
        "microbatch": microbatch,
        "microbatches": microbatches,
        "zero": zero,
        "sequence_parallel": sequence_parallel,
        "recompute": _codes("recompute", recompute, KINDS),
        "flash_attention": flash_attention,
        "schedule": _codes("schedule", schedule, ORDERS),
        "interleave": interleave,
    }
    columns = np.broadcast_arrays(*(_numbers(name, value) for name, value in given.items()))
    shape = columns[0].shape
    flat = {name: c.ravel() for name, c in zip(given, columns, strict=True)}
    if not flat["dp"].size:
        return np.zeros(shape, np.int64)
    many = Many(model, recipe, sequence, flat)
    most: np.ndarray = np.maximum(many.peak(np.zeros_like(flat["pp"])), many.peak(flat["pp"] - 1))
    for stage in range(1, many.unequal):
        most = np.maximum(most, many.peak(np.minimum(stage, flat["pp"] - 1)))
    # 1e9 bytes of activations a sequence would leave 64 bits
    sequences = flat["microbatch"].astype(float) * flat["microbatches"]
    if (most < 0).any() or (sequences > 2**33).any():
        raise ConfigError("these sizes are too large to count in 64 bits; use Layout one by one")
    return most.reshape(shape)


def _codes(name: str, words: Any, allowed: tuple[str, ...]) -> np.ndarray:
    given = np.asarray(words)
    codes = np.full(given.shape, -1)
    for code, word in enumerate(allowed):
        codes[given == word] = code
    if (codes < 0).any():
        raise ConfigError(f"{name} must be one of {allowed}, got {given[codes < 0].tolist()[0]!r}")
    return codes


def _numbers(name: str, values: Any) -> np.ndarray:
    given = np.asarray(values)
    flag = name in ("sequence_parallel", "flash_attention")
    if given.size and given.dtype.kind not in ("b" if flag else "iu"):
        rule = "True or False" if flag else "integers"
        raise ConfigError(f"{name} must be {rule}, got {values!r}")
    numbers = given.astype(np.int64)
    least = 0 if flag or name in ("zero", "recompute", "schedule") else 1
    most = 3 if name == "zero" else 2**31
    if ((numbers < least) | (numbers > most)).any():
        wrong = numbers[(numbers < least) | (numbers > most)].flat[0]
        raise ConfigError(f"{name} must lie between {least} and {most}, got {wrong}")
    return numbers
