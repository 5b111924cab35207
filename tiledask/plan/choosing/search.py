"""Every layout of a cluster, pruned by memory, ranked by time.

dp x tp x pp x cp = devices          peaks              times
      x ep x micro-batch    ------>  more than a  --->  of those that fit,  --->  fastest first
      x chunks x ZeRO x ...          device has?        all at once
"""

import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from tiledask.errors import ConfigError, short
from tiledask.plan.arrays import Columns
from tiledask.plan.fitting.fit import Fit, fits
from tiledask.plan.fitting.overhead import VERDICTS, Overhead
from tiledask.plan.fitting.space import COLUMNS, Space, layouts_of
from tiledask.plan.fitting.vectorized import peak_bytes
from tiledask.plan.inputs.hardware import ClusterSpec
from tiledask.plan.inputs.layout import ITEMS, MOST_OF_ANY, Layout, Numbers
from tiledask.plan.inputs.load import load_cluster, load_model
from tiledask.plan.inputs.model import Model
from tiledask.plan.inputs.recipes import Recipe, load_recipe
from tiledask.plan.inputs.run import check_run, check_trains
from tiledask.plan.tables import Part, Printable, Table, format_value, frame
from tiledask.plan.timing.calibration import BESIDE, Calibration, calibration_of
from tiledask.plan.timing.step import StepEstimate, estimate_steps
from tiledask.plan.timing.step_time import step_parts
from tiledask.plan.units import format_bytes, format_seconds
from tiledask.plan.whole import is_whole, whole_number

__all__ = ["Plan", "Plans", "Space", "plan_table", "search"]

FIRST = 10
"""Plans of a search that are shown."""
SIMULATED = 14
"""Plans that are put in order by their simulated seconds before anybody looks at one."""
HEADS = {name: name for name in ("dp", "tp", "pp", "cp", "ep")} | {
    "expert_tp": "expert tp",
    "microbatch": "b",
    "microbatches": "m",
    "interleave": "v",
    "zero": "ZeRO",
    "recompute": "recompute",
    "sequence_parallel": "SP",
    "flash_attention": "flash",
    "schedule": "schedule",
}
"""Field of a layout -> its column."""
LEAST = ("flash", "SP", "expert tp", "v", "ZeRO", "b")
"""The columns that go where 80 characters are not enough for all, in this order."""
Run = tuple[Model, ClusterSpec, int, Recipe, int]
"""Model, cluster, sequences of a step, recipe, tokens of a sequence."""


@dataclass(frozen=True, repr=False)
class Plan:
    """One layout of a search, with what it takes."""

    found: "Plans"
    layout: Layout
    verdict: str
    """"fits", "tight" (it depends on the overhead of a run) or "no"."""
    peak: int
    """Bytes on the fullest device, without that overhead."""
    by_formula: float
    """Seconds of a step by formula, which ranks thousands; infinite for what does not fit."""

    @property
    def seconds(self) -> float:
        """Seconds of a step, those of ``step``; infinite for a layout that does not fit."""
        return np.inf if self.verdict == "no" else self.step.total

    @cached_property
    def fit(self) -> Fit:
        """The verdict explained."""
        found = self.found
        of = found.model, self.layout, found.cluster, found.recipe, found.sequence
        return fits(*of, **found.assumed)

    @cached_property
    def step(self) -> StepEstimate:
        """Where the time goes; the stages as they are, simulated."""
        return self.fit.step

    def to_dict(self) -> dict[str, Any]:
        """The layout, also as `tiledask fit` takes it, and what it takes, as plain values for JSON;
        seconds of a layout that does not fit are None."""
        return {
            "layout": vars(self.layout),
            "devices": self.layout.devices,
            "verdict": self.verdict,
            "peak": self.peak,
            "seconds": self.seconds if self.seconds < np.inf else None,
            "options": shlex.join(self.layout.options),
        }

    @property
    def row(self) -> dict[str, Any]:
        """What a table says of it (`tiledask.table`); no seconds if it does not fit."""
        seconds = f"{self.seconds:.1f}" if self.seconds < np.inf else None
        bill = {"verdict": self.verdict, "GB": f"{self.peak / 1e9:.1f}", "s": seconds}
        axes = ("dp", "tp", "pp", "zero", "recompute")
        return bill | {name: getattr(self.layout, name) for name in axes}

    def __repr__(self) -> str:
        takes = f"{format_bytes(self.peak)} a device, {format_seconds(self.seconds)} a step"
        return f"Plan({self.layout}: {self.verdict}, {takes})"


class Plans(Sequence[Plan], Printable):
    """The layouts of a search: those that fit, fastest by formula first, then the tight ones, then
    those that do not fit, the nearest first; the first 14 in the order of their simulated
    ``seconds`` (``settle`` for more).

    ``considered``: how many layouts were looked at; ``counts``: how many have each verdict;
    ``left_out``: how many were not, as the framework that was named does not run them, by why.
    ``columns``: fields of all layouts and what they take; ``order``: their rows, the best first.
    """

    def __init__(self, run: Run, assumed: dict[str, Any], n: Columns, left_out: dict[str, int]):
        self.model, cluster, self.global_batch, recipe, self.sequence = run
        self.cluster, self.recipe, self.assumed, self.left_out = cluster, recipe, assumed, left_out
        known = calibration_of(cluster.device, recipe, **assumed)
        # with the memory of that framework
        self.run = held = replace(recipe, framework=known.framework, usual=known.usual)
        layouts = {name: n[name] for name in COLUMNS}
        if "peak" not in n:
            n = layouts | {"peak": peak_bytes(self.model, held, self.sequence, **layouts)}
        over = Overhead.of(cluster.device, held, Numbers(**layouts))
        verdict = over.verdict(n["peak"])
        seconds = np.full(len(verdict), np.inf)
        if len(inside := np.flatnonzero(verdict < 2)):
            some = Numbers(**{name: column[inside] for name, column in layouts.items()})
            of = self.model, cluster, some, recipe, self.sequence
            seconds[inside] = sum(step_parts(*of, **assumed).values())
        self.columns = n | {"by_formula": seconds, "verdict": verdict}
        self.order = np.lexsort((n["peak"], seconds, verdict))
        self.settled: list[Plan] = []
        self.considered = len(self)
        self.counts = {word: int((verdict == at).sum()) for at, word in enumerate(VERDICTS)}

    def settle(self, first: int = SIMULATED) -> "Plans":
        """These plans, with the ``first`` in the order of their simulated seconds, some
        milliseconds each. Whoever looks at a plan gets the first 14 settled."""
        fresh = [self._plan(at) for at in range(len(self.settled), min(first, len(self)))]
        if timed := [plan for plan in fresh if plan.verdict != "no"]:
            run = self.cluster, self.recipe, self.sequence
            steps = estimate_steps(self.model, [p.layout for p in timed], *run, **self.assumed)
            for plan, step in zip(timed, steps, strict=True):
                vars(plan)["step"] = step  # where a cached property keeps it
        if fresh:
            plans = self.settled + fresh
            verdicts = [VERDICTS.index(plan.verdict) for plan in plans]
            order = sorted(range(len(plans)), key=lambda n: (verdicts[n], plans[n].seconds))
            self.order[: len(plans)] = self.order[order]
            self.settled = [plans[n] for n in order]
        return self

    def _plan(self, at: int) -> Plan:
        row = {name: each[self.order[at]].item() for name, each in self.columns.items()}
        fields = {name: row[name] for name in COLUMNS[:-1]}
        layout = Layout(**fields, partition=ITEMS if row["items"] else None)
        return Plan(self, layout, VERDICTS[row["verdict"]], row["peak"], row["by_formula"])

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            return [self[n] for n in range(*at.indices(len(self)))]
        settled, at = self.settle().settled, range(len(self))[at]
        return settled[at] if at < len(settled) else self._plan(at)

    @property
    def best(self) -> Plan:
        """The fastest that fits; if none does the fastest tight one, else the nearest."""
        if not len(self):
            none = f"none gives each copy whole micro-batches of the {self.global_batch} sequences"
            raise ConfigError(
                f"no layout of the space on {self.cluster.devices} devices is left: "
                f"{'; '.join(self.left_out) or none}; change the batch, the devices or the space, "
                f"or name another framework"
            )
        return self.settle().settled[0]

    def to_dict(self, first: int = FIRST) -> dict[str, Any]:
        """How many were considered, and the ``first`` plans, as plain values for JSON."""
        return {
            "model": {"name": self.model.name, "source": self.model.source},
            "considered": self.considered,
            "counts": self.counts,
            "left_out": self.left_out,
            "plans": [plan.to_dict() for plan in self.settle(first)[:first]],
        }

    def to_frame(self, first: int | None = 1000) -> Any:
        """A pandas DataFrame: a row per plan, the fields of its layout, its devices, peak bytes,
        verdict, and its seconds by formula."""
        order = self.settle().order[:first]
        rows = {name: column[order] for name, column in self.columns.items()}
        return frame(rows | {"verdict": np.array(VERDICTS)[rows["verdict"]]})

    def __repr__(self) -> str:
        counts = ", ".join(f"{n} {word}" for word, n in self.counts.items())
        best = f"; best: {self[0]!r}" if len(self) else ""
        return f"Plans({self.model.name} on {self.cluster}: {counts}{best})"

    def printed(self, first: int = FIRST, again: str = "") -> Iterator[Part]:
        """How many fit, and the ``first`` ones. ``again``: the command that asks for the best."""
        counts = ", ".join(f"{n:,} {word}" for word, n in self.counts.items())
        yield f"{self.considered:,} layouts", f" of {self.model.name} on {self.cluster}: {counts}"
        yield from [f"  {self.cluster.uneven}"] * bool(self.cluster.uneven)
        for why, many in self.left_out.items():
            yield f"  not considered: {why} ({many:,} layouts)"
        if len(self):
            title = {
                "fits": "fastest first",
                "tight": "none fits for sure; of the tight ones, fastest first",
                "no": "none fits; the nearest",
            }[self.best.verdict]
            yield plan_table(self.settle(first)[:first], title)
            if self.best.verdict != "no":
                yield from [f"the first one:\n  {again}"] * bool(again)
                within = f"each is within {100 * self.best.step.error:.1f} % by estimate"
                yield f"{within}; plans closer than that may be in another order"


def search(
    model: Model | str,
    cluster: ClusterSpec | str,
    global_batch: int,
    *,
    sequence: int | None = None,
    recipe: str | Recipe | None = None,
    space: Space | None = None,
    devices: Sequence[int] | None = None,
    calibration: Calibration | str | None = None,
    framework: str | None = None,
) -> Plans:
    """All layouts of ``space`` that train on ``global_batch`` sequences a step, as Plans.

    ``model`` and ``cluster`` may be names, as `load_model` and `load_cluster` read them.
    ``framework``: whose kernels, overlaps and memory are assumed, as of `fits`; named, here or by
    a ``calibration``, only what it runs is considered (data/calibration/framework), and
    ``left_out`` says what was not.
    ``recipe``: default the framework's, "mixed-adam-16" without one. ``devices``: numbers of
    devices to use (default: all of the cluster's). ``calibration``: as of `estimate_step`.
    ZeRO 3 gathers each layer's weights for every micro-batch.
    Memory is counted to the byte (:func:`tiledask.plan.fitting.vectorized.peak_bytes`), time ranked
    by :func:`tiledask.plan.timing.step_time.step_parts`, and simulated for the first ones.

    >>> plans = search("llama-2-70b", "64xA100-80GB", 256)
    >>> plans.best.verdict, plans.best.seconds <= plans[1].seconds
    ('fits', True)
    """
    assumed: dict[str, Any] = {"calibration": calibration, "framework": framework}
    given: dict[str, Any] = {"sequence": sequence, "recipe": recipe, "space": space}
    given["devices"] = devices
    return Plans(*considered(model, cluster, global_batch, **given, **assumed))


def considered(
    model: Model | str,
    cluster: ClusterSpec | str,
    global_batch: int,
    *,
    sequence: int | None = None,
    recipe: str | Recipe | None = None,
    space: Space | None = None,
    devices: Any = None,
    **assumed: Any,
) -> tuple[Run, dict[str, Any], Columns, dict[str, int]]:
    """What `search` looks at, checked: what runs, by whose calibration or framework, the layouts,
    and how many are left out, by why."""
    model, cluster, space = load_model(model), load_cluster(cluster), space or Space()
    named = None
    if any(each is not None for each in assumed.values()):
        named = calibration_of(cluster.device, load_recipe("mixed-adam-16"), **assumed)
    recipe = load_recipe(recipe or (named.trains if named else "mixed-adam-16"))
    meant, what = "is it a number of tokens?", "sequences"
    batch = whole_number("global_batch", global_batch, 1, MOST_OF_ANY, of=what, way_out=meant)
    check_trains(recipe, timed=True)
    if not isinstance(space, Space):
        raise ConfigError(f"space is a td.Space, such as Space(tp=(1, 2)), got {short(space)}")
    sequence = check_run(model, Layout(), sequence)
    least = [Layout(dp=ep, ep=ep) for ep in space.ep or ()] + [Layout(cp=n) for n in space.cp or ()]
    for layout in least:
        check_run(model, layout, sequence)
    given = cluster.devices if devices is None else devices
    counts = tuple(given) if isinstance(given, Iterable) else (given,)
    if not all(is_whole(n, 1, cluster.devices) for n in counts):
        raise ConfigError(
            f"devices must lie between 1 and the cluster's {cluster.devices}, got "
            f"{', '.join(map(short, counts[:8]))}; name a larger cluster"
        )
    columns = layouts_of(model, cluster, batch, sequence, space, [int(n) for n in counts])
    left_out = {}
    for name, values in named.runs.items() if named else ():  # what the framework does not run
        idle = {BESIDE: columns["pp"] == 1, "sequence_parallel": columns["tp"] == 1}
        runs = np.isin(columns["zero" if name == BESIDE else name], values)
        runs |= idle.get(name, False)  # where that field does nothing
        columns = {each: column[runs] for each, column in columns.items()}
        if named and not runs.all():
            words = f"{named.framework} runs {name} {' or '.join(map(str, values))}"
            left_out[words] = int((~runs).sum())
    return (model, cluster, batch, recipe, sequence), assumed, columns, left_out


def plan_table(plans: Sequence[Any], title: str) -> Table:
    """A row per plan, and the axes in which they differ; what is the same in all stands in the
    title."""
    layouts = [plan.layout for plan in plans]
    columns, same = {"": [f"{n + 1}" for n in range(len(plans))]}, []
    for name, head in HEADS.items():
        usual, *values = (format_value(getattr(n, name)) for n in (Layout(), *layouts))
        if len(set(values)) > 1:
            columns[head] = values
        elif values[0] != usual:
            same.append(f"{head} {values[0]}")
    varying = {"devices": [f"{each.devices}" for each in layouts]}
    varying["verdict"] = [plan.verdict for plan in plans]
    columns |= {name: cells for name, cells in varying.items() if len(set(cells)) > 1}
    columns["a device"] = [format_bytes(plan.peak) for plan in plans]
    timed = [plan.step if plan.verdict != "no" else None for plan in plans]
    if timed[0]:
        columns["a step"] = [format_seconds(step.total) if step else "" for step in timed]
        columns["tokens/s"] = [f"{step.tokens_per_second:,.0f}" if step else "" for step in timed]
        columns["MFU"] = [f"{100 * step.mfu:.1f} %" if step else "" for step in timed]
    title += f"; all: {', '.join(same)}" if same else ""
    left_out = []
    for name in LEAST:
        widths = [max(len(head), *map(len, cells)) for head, cells in columns.items()]
        if sum(widths) + 2 * (len(widths) - 1) > 80 and columns.pop(name, []):
            left_out.append(name)
    title += f"; not shown: {', '.join(left_out)}" if left_out else ""
    left = [i for i, name in enumerate(columns) if name == "verdict"]
    return Table(tuple(columns), list(zip(*columns.values(), strict=True)), title, left)
