"""Puzzles: a task with numbers to reach, a drawing, and a check that works every answer out.

    puzzle = load_puzzle("24-on-4")
    answer = None                     # '1-2 | 3-4 | ...'
    puzzle.draw(answer)
    puzzle.check(answer)              # a Result: true once every target is met
    puzzle.check(answer).require()    # raises until then

No answer is stored: rules, simulation and exact optimum judge whatever is written.
"""

from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from types import MappingProxyType
from typing import TYPE_CHECKING

from tiledask.errors import ConfigError, PartitionError, ScheduleError
from tiledask.plan.closed_form import lower_bound
from tiledask.plan.data import names, read_named
from tiledask.plan.judge import judge
from tiledask.plan.needs import peak_in_flight, validate
from tiledask.plan.schedule import Schedule
from tiledask.plan.schedules import schedule
from tiledask.plan.simulate import simulate
from tiledask.plan.timeline import Timeline

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Puzzle", "Result", "Target", "UnsolvedError", "load_puzzle", "puzzle_names"]

_SLACK = 1e-9
"""Relative slack of a target, for sums of seconds."""
_MOST_MICROBATCHES = 1000


class UnsolvedError(ValueError):
    """A puzzle whose targets are not all met; the message says which and by how much."""


@dataclass(frozen=True)
class Target:
    """One number to stay within, and what the answer reaches."""

    name: str
    """What is measured, with its unit."""
    wanted: float
    """At most this."""
    got: float
    best: float | None
    """The best that any legal answer reaches; None where that is not a question."""

    @property
    def met(self) -> bool:
        return self.got <= self.wanted + _SLACK * abs(self.wanted)

    def __str__(self) -> str:
        if self.met:
            return f"{self.name} {self.got:g}, target at most {self.wanted:g}: met"
        over = self.got - self.wanted
        return f"{self.name} {self.got:g}, target at most {self.wanted:g}: {over:.3g} too much"


@dataclass(frozen=True)
class Result:
    """What an answer to a puzzle is worth; true once every target is met."""

    puzzle: str
    attempted: bool
    legal: bool
    reason: str
    """A sentence: the rule that is broken, the targets that are missed, or that it is solved."""
    targets: tuple[Target, ...] = ()
    """Empty unless the answer is legal."""

    def __bool__(self) -> bool:
        return self.legal and all(target.met for target in self.targets)

    @property
    def best(self) -> bool:
        """Whether it is solved and no legal answer does better on any target."""
        return bool(self) and all(
            t.best is None or t.got <= t.best + _SLACK * abs(t.best) for t in self.targets
        )

    def require(self) -> "Result":
        """This result, if every target is met; UnsolvedError otherwise."""
        if not self:
            raise UnsolvedError(f"{self.puzzle}: {self.reason}")
        return self

    def _repr_html_(self) -> str:
        head = "<tr><th></th><th>yours</th><th>target</th><th>best possible</th><th></th></tr>"
        rows = "".join(
            f"<tr><td>{escape(t.name)}</td><td>{t.got:g}</td><td>at most {t.wanted:g}</td>"
            f"<td>{'' if t.best is None else f'{t.best:g}'}</td>"
            f"<td>{'met' if t.met else 'missed'}</td></tr>"
            for t in self.targets
        )
        # not a caption: those wrap at the table's width, which is nothing without rows
        return f"<p>{escape(self.reason)}</p>" + (f"<table>{head}{rows}</table>" if rows else "")


@dataclass(frozen=True)
class Puzzle:
    """A task, its numbers, and the targets that an answer has to meet."""

    name: str
    title: str
    kind: str
    """"partition", "microbatches" or "order"."""
    task: str
    inputs: MappingProxyType
    targets: MappingProxyType
    """The most that each measure may be."""

    def check(self, answer) -> Result:
        """The worth of ``answer``; None is "not attempted": false, and no complaint."""
        if answer is None:
            return Result(self.name, False, False, "Not attempted yet.")
        try:
            measured = _KINDS[self.kind].measure(self.inputs, self.targets, answer)
        except (PartitionError, ScheduleError) as error:
            return Result(self.name, True, False, f"Not legal: {error}")
        targets = tuple(
            Target(_KINDS[self.kind].measures[name], wanted, *measured[name])
            for name, wanted in self.targets.items()
        )
        missed = [str(t) for t in targets if not t.met]
        reason = f"Legal, but {'; '.join(missed)}." if missed else "Solved: every target is met."
        return Result(self.name, True, True, reason, targets)

    def draw(self, answer=None) -> "Figure":
        """A figure of ``answer``, right or wrong; of the empty task for None."""
        from tiledask.lab import puzzle_figures

        return getattr(puzzle_figures, f"draw_{self.kind}")(self, answer, self.check(answer))

    def _repr_html_(self) -> str:
        return f"<p><b>{escape(self.title)}.</b> {escape(self.task)}</p>"


def puzzle_names() -> tuple[str, ...]:
    """Names of the puzzles there are.

    >>> "24-on-4" in puzzle_names()
    True
    """
    return names("puzzles")


def load_puzzle(name: str) -> Puzzle:
    """The puzzle called ``name``; ConfigError if there is none, or if its file is not a puzzle.

    >>> puzzle = load_puzzle("24-on-4")
    >>> puzzle.check("1-6 | 7-12 | 13-18 | 19-24").reason
    'Solved: every target is met.'
    >>> bool(puzzle.check(None))
    False
    """
    return _read(name, read_named("puzzles", name).values)


def _read(name: str, values: dict) -> Puzzle:
    wanted = {"title", "kind", "task", "inputs", "targets"}
    if set(values) != wanted:
        odd = sorted(set(values) ^ wanted)
        raise ConfigError(f"puzzle {name!r} has exactly the keys {sorted(wanted)}; look at {odd}")
    if values["kind"] not in _KINDS:
        raise ConfigError(
            f"puzzle {name!r} is of kind {values['kind']!r}; there are {', '.join(_KINDS)}"
        )
    kind = _KINDS[values["kind"]]
    inputs, targets = values["inputs"], values["targets"]
    if not kind.needed <= set(inputs) <= kind.needed | kind.optional:
        raise ConfigError(
            f"puzzle {name!r} needs the inputs {sorted(kind.needed)} and may have "
            f"{sorted(kind.optional)}; it has {sorted(inputs)}"
        )
    if not targets or not set(targets) <= set(kind.measures):
        raise ConfigError(
            f"puzzle {name!r} needs targets among {sorted(kind.measures)}; it has {sorted(targets)}"
        )
    fixed = {**values, "inputs": MappingProxyType(inputs), "targets": MappingProxyType(targets)}
    return Puzzle(name=name, **fixed)


# --- the kinds -------------------------------------------------------------------------


def _measure_partition(inputs, targets, answer) -> dict[str, tuple[float, float]]:
    verdict = judge(answer, **inputs)
    if not verdict:
        raise PartitionError(f"{verdict.rule}. {verdict.reason}")
    return {
        "crossings": (verdict.crossings, inputs["devices"] - 1),
        "bottleneck": (verdict.bottleneck, verdict.optimum),
    }


def run_microbatches(inputs, microbatches: int) -> Timeline:
    """The simulated run of the puzzle's schedule with so many micro-batches."""
    order = schedule(inputs["schedule"], inputs["devices"], microbatches)
    return simulate(order, **_times(inputs))


def _measure_microbatches(inputs, targets, answer) -> dict[str, tuple[float, float | None]]:
    if isinstance(answer, int) and answer > _MOST_MICROBATCHES:
        raise ScheduleError(f"{answer} micro-batches are more than {_MOST_MICROBATCHES}: try fewer")
    idle = run_microbatches(inputs, answer).bubble_fraction
    return {"idle": (idle, None), "microbatches": (answer, _fewest(inputs, targets))}


def _fewest(inputs, targets) -> int | None:
    """The smallest number of micro-batches within the idle target; None if more than asked."""
    enough = targets.get("idle", 1.0) * (1 + _SLACK)
    tries = range(1, 1 + targets.get("microbatches", _MOST_MICROBATCHES))
    return next((m for m in tries if run_microbatches(inputs, m).bubble_fraction <= enough), None)


def read_order(inputs, answer) -> Schedule:
    """The answer as a schedule that can run and does all of the puzzle's work, or ScheduleError."""
    if isinstance(answer, str):
        answer = Schedule.from_text(answer)
    if not isinstance(answer, Schedule):
        raise ScheduleError(f"write the order as text, a line per device; got {answer!r}")
    validate(answer, inputs["stages"], inputs["microbatches"])
    if answer.place != tuple(range(inputs["stages"])):
        raise ScheduleError(f"stage s is on device s here; the answer places them {answer.place}")
    if not {a.kind for a in answer} >= {"F", "B"}:
        raise ScheduleError(
            f"training needs a forward and a full backward (F and B) of each micro-batch; the "
            f"answer has only {', '.join(sorted({a.kind for a in answer}))}"
        )
    if not {a.kind for a in answer} <= {"F", "B"}:
        raise ScheduleError("a backward is one piece here: write B, not I and W")
    return answer


def run_order(inputs, order: Schedule) -> Timeline:
    """The simulated run of ``order`` with the puzzle's times."""
    return simulate(order, **_times(inputs))


def _measure_order(inputs, targets, answer) -> dict[str, tuple[float, float | None]]:
    order = read_order(inputs, answer)
    stages, times = inputs["stages"], _times(inputs)
    least = lower_bound(
        [times["forward"]] * stages,
        [times["backward"]] * stages,
        inputs["microbatches"],
        times["latency"],
    )
    return {
        "makespan": (run_order(inputs, order).makespan, least),
        "kept": (max(peak_in_flight(order)), None),
    }


def _times(inputs) -> dict[str, float]:
    return {name: inputs[name] for name in ("forward", "backward", "latency")}


@dataclass(frozen=True)
class _Kind:
    measure: Callable
    """(inputs, targets, answer) -> {measure: (reached, best possible or None)}."""
    measures: dict[str, str]
    """Name in the file -> name for people."""
    needed: frozenset[str]
    optional: frozenset[str] = frozenset()


_KINDS = {
    "partition": _Kind(
        _measure_partition,
        {"crossings": "changes of device", "bottleneck": "time of the slowest device"},
        frozenset({"costs", "devices"}),
        frozenset({"speeds", "memory", "capacity"}),
    ),
    "microbatches": _Kind(
        _measure_microbatches,
        {"idle": "idle share of device-time", "microbatches": "micro-batches"},
        frozenset({"schedule", "devices", "forward", "backward", "latency"}),
    ),
    "order": _Kind(
        _measure_order,
        {"makespan": "seconds until the end", "kept": "activations kept on a device"},
        frozenset({"stages", "microbatches", "forward", "backward", "latency"}),
    ),
}
