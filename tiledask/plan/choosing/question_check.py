"""Does a question's premise hold? Every claim worked out, with its formula and the way out.

    30e9 parameters, 32 devices of 24 GB                 claim          verdict
    plan B: pp 4 x tp 2 x dp 4                  ->       "B starts"     fails: 60 GB of 24 GB
                                                                        ZeRO-2 would do: 20.62 GB

A premise that names its model gets the verdict of ``fits``. One that knows only a number of
parameters gets the same rule on what training keeps for every parameter: a plan that fails by that
alone cannot run, whatever the architecture; one that holds still needs room for activations.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

from tiledask.errors import ConfigError, short
from tiledask.plan import html
from tiledask.plan.data import Fields, names, read, read_named
from tiledask.plan.fitting.fit import Fit, fits, minimum_devices
from tiledask.plan.fitting.overhead import (
    VERDICTS,
    default_overhead,
    judge,
    most_of,
    overhead_of,
    sure_of,
)
from tiledask.plan.inputs.hardware import MOST_DEVICES, ClusterSpec
from tiledask.plan.inputs.layout import Layout
from tiledask.plan.inputs.load import as_model, load_cluster
from tiledask.plan.inputs.model import Model
from tiledask.plan.inputs.recipes import State, load_recipe, recipes, state_bytes
from tiledask.plan.inputs.run import check_run
from tiledask.plan.judged import BARELY, FAILS, HOLDS, Judged, judged, judged_table
from tiledask.plan.pipelines.closed_form import bubble_fraction
from tiledask.plan.timing.collective_time import zero_passes
from tiledask.plan.units import divisors, format_bytes, format_percent, parse_bytes
from tiledask.plan.whole import is_whole

__all__ = [
    "Critique",
    "check_premise",
    "premises",
]

WORDS = dict(zip(VERDICTS, (HOLDS, BARELY, FAILS), strict=True))
"""What ``fits`` says of a plan -> what that makes of the claim that it fits."""


@dataclass(frozen=True, repr=False)
class Critique:
    """A premise's claims, each with its verdict; true if none of them fails.

    A claim that a plan fits holds, fails, or holds barely: what is left is less than the overhead
    of a run. Those are what ``fits`` calls "fits", "no" and "tight".
    """

    question: str
    convention: str
    """What is counted for every parameter: some answers change with it."""
    findings: tuple[Judged, ...]

    def __bool__(self) -> bool:
        return all(finding.holds is not False for finding in self.findings)

    def __repr__(self) -> str:
        failed = sum(finding.holds is False for finding in self.findings)
        return f"Critique({self.question}: {failed} of {len(self.findings)} claims fail)"

    def __str__(self) -> str:
        return "\n".join([f"{self.question} ({self.convention})", *map(str, self.findings)])

    def _repr_html_(self) -> str:
        found = judged_table(self.findings, self.question)
        return f"{found}<p>{html.words(self.convention)}</p>"

    def to_dict(self) -> dict[str, object]:
        """The same as plain values, for JSON."""
        return {
            "question": self.question,
            "convention": self.convention,
            "holds": bool(self),
            "findings": [
                {"claim": f.claim, "verdict": f.verdict, "why": f.why, "way_out": f.way_out}
                for f in self.findings
            ],
        }


def premises() -> tuple[str, ...]:
    """Names of the shipped premises."""
    return names("premises")


def check_premise(premise: str | os.PathLike[str] | Mapping[str, Any]) -> Critique:
    """The Critique of a premise: a shipped name, a JSON file, or the same as a mapping.

    Keys: ``question``; ``parameters`` or ``model`` (in a mapping also a Model); ``memory`` of a
    device, such as "24GB"; ``devices``, and ``devices_per_node`` (default 8); ``recipe`` (default
    mixed-adam-16); ``sequence``, tokens of one (default 2048); ``plans``, from a name to fields of
    a Layout and a recipe; ``claims``, a list of objects with ``claim``, the words, and ``kind``:

    - "fits", "too large": what the ``plan`` takes of the memory: of a ``model`` by ``fits``; of a
      number of ``parameters`` their states alone, so that its plans have only dp, tp, pp, zero,
      microbatches and recipe;
    - "sizes exist": some number of parameters is too large for one device by the recipe
      ``alone`` and yet fits the ``plan``; for premises that do not say how large the model is;
    - "traffic grows": the bytes that a device sends in a step for gradients, and for ZeRO's
      weights, grow ``times``-fold from plan ``from`` to plan ``to``, in rings;
    - "used": with pp ``stages`` and ``microbatches``, devices compute a ``share`` of the time;
    - "fits all": one choice of tp, pp and ZeRO fits every cluster of ``clusters``, each with
      ``devices``, ``memory`` and ``devices_per_node``.

    What cannot be read is a ConfigError.

    >>> critique = check_premise("hardware-refresh")
    >>> bool(critique), [finding.verdict for finding in critique.findings]
    (False, ['holds', 'fails', 'holds'])
    """
    if isinstance(premise, Mapping) and isinstance(premise.get("model"), Model):
        rest = {key: value for key, value in premise.items() if key != "model"}
        return _Premise(Fields(rest, "premise"), premise["model"]).critique
    if isinstance(premise, Mapping):
        return _Premise(Fields(dict(premise), "premise")).critique
    if not isinstance(premise, str | os.PathLike):
        raise ConfigError(
            f"a premise is a name, a path or a mapping, got {short(premise)}; there are "
            f"{', '.join(names('premises'))}"
        )
    text = os.fspath(premise)
    is_file = text.endswith(".json") or os.sep in text or (len(text) < 256 and Path(text).is_file())
    return _Premise(read(text) if is_file else read_named("premises", text)).critique


@dataclass(frozen=True)
class _Plan:
    """How the parameters are sharded, and what is kept for each."""

    layout: Layout
    recipe: str

    @property
    def slices(self) -> int:
        return self.layout.tp * self.layout.pp

    def states(self, parameters: int) -> int:
        """Bytes on one device of all that is kept for the model's parameters."""
        mine = -(-parameters // self.slices)
        copies = self.layout.dp * self.layout.cp
        return sum(state_bytes(mine, self.recipe, self.layout.zero, copies).values())

    def per_parameter(self) -> float:
        """Bytes on one device for every parameter of the model."""
        copies, zero = self.layout.dp * self.layout.cp, self.layout.zero
        sharded = (s.bytes / (copies if s.sharded(zero) else 1) for s in _states(self.recipe))
        return sum(sharded) / self.slices

    def sent(self, parameters: int) -> int:
        """Bytes that a device sends in a step for gradients and for ZeRO's weights, in rings."""
        each = sum(times * width for _, times, width in self.moved)
        copies = self.layout.dp * self.layout.cp
        return each * -(-parameters // self.slices) * (copies - 1) // copies

    @property
    def moved(self) -> list[tuple[str, int, int]]:
        """(what, times, bytes): what rings move in a step for every parameter of a slice."""
        recipe, zero = load_recipe(self.recipe), self.layout.zero
        gradients, weights = map(int, zero_passes(zero, self.layout.microbatches))
        rows = [("gradients", gradients, recipe.gradient_bytes)]
        if recipe.gradient_bytes or zero == 3:  # frozen weights are gathered by ZeRO-3 alone
            rows.append(("weights", weights, recipe.gathered_bytes))
        return [row for row in rows if row[1] * row[2]]

    def over(self, zero: int) -> "_Plan":
        """The same under another stage of ZeRO."""
        return replace(self, layout=replace(self.layout, zero=zero))

    def __str__(self) -> str:
        named = {name: getattr(self.layout, name) for name in ("dp", "tp", "pp")}
        words = [f"{name} {n}" for name, n in named.items() if n > 1]
        zero = self.layout.zero
        return " x ".join(words or ["one device"]) + (f", ZeRO-{zero}" if zero else "")


class _Premise:
    """The claims of a premise, worked out in turn."""

    def __init__(self, given: Fields, model: Model | None = None):
        self.given = given
        self._answers: dict[tuple[_Plan, int], Fit] = {}
        self.question = given.text("question")
        self.recipe = load_recipe(given.text("recipe", "mixed-adam-16")).name
        self.memory = _memory(given)
        self.devices = _count(given, "devices", 1)
        self.per_node = _count(given, "devices_per_node", 8)
        self.model = as_model(given.text("model")) if "model" in given else model
        usual = self.model.usual_sequence if self.model else 2048
        self.sequence = given.integer("sequence", usual)
        self._size = given.integer("parameters") if "parameters" in given else None
        if self.model is not None:
            if self._size not in (None, self.model.parameters):
                raise given.fail(
                    "parameters",
                    f"is {self._size:,}, and {self.model.name} has "
                    f"{self.model.parameters:,}; leave it out",
                )
            self._size = self.model.parameters
        self.plans = {"one device": _Plan(Layout(), self.recipe)}
        if "plans" in given:
            inner = given.object("plans")
            self.plans |= {name: self._plan(inner.object(name)) for name in inner.values}
        self.claims = given.objects("claims")
        given.text("source", "")
        given.text("name", "")
        given.done()

    def _plan(self, given: Fields) -> _Plan:
        chosen: dict[str, Any] = {}
        for name, usual in vars(Layout()).items():
            if name not in given:
                continue
            if self.model is None and name not in _FLAT:
                raise given.fail(name, "changes what only a model tells; name a 'model' too")
            if isinstance(usual, bool):
                chosen[name] = given.boolean(name)
            elif is_whole(usual):
                chosen[name] = given.integer(name, minimum=0)
            elif isinstance(given.values[name], str):
                chosen[name] = given.text(name)
            else:
                chosen[name] = given.integers(name)
        recipe = load_recipe(given.text("recipe", self.recipe)).name
        given.done()
        try:
            layout = Layout(**chosen)
            if self.model is not None:
                check_run(self.model, layout, self.sequence)
        except ValueError as error:
            raise ConfigError(f"{given.where}: {error}") from None
        if layout.devices > self.devices:
            raise given.fail(
                "dp",
                f"x cp x tp x pp makes {layout.devices} devices, the premise has "
                f"{self.devices}; lower one of them or raise devices",
            )
        return _Plan(layout, recipe)

    @property
    def size(self) -> int:
        if self._size is None:
            raise self.given.fail(
                "parameters", "is missing; this claim needs it (or a model): add it"
            )
        return self._size

    @cached_property
    def critique(self) -> Critique:
        size = f"{self._size:,} parameters, " if self._size else ""
        if self.model is not None:
            size = f"{self.model.name}, {size}sequences of {self.sequence:,} tokens, "
        kept = _states(self.recipe)
        states = ", ".join(f"{s.tensor} {s.bytes}" for s in kept)
        is_whole = _of_all(self.recipe) or not load_recipe(self.recipe).trains
        apart = "" if is_whole else "; adapters left out"
        each = sum(s.bytes for s in kept)
        findings = []
        for claim in self.claims:
            words, kind = claim.text("claim"), claim.text("kind")
            if kind not in _KINDS:
                raise claim.fail("kind", f"is {kind!r}; there are {', '.join(_KINDS)}")
            verdict, why, way_out = _KINDS[kind](self, claim)
            claim.done()
            findings.append(judged(words, verdict, why, way_out))
        return Critique(
            self.question,
            f"{size}{self.recipe}: {each} B a parameter ({states}{apart}); {self.devices} devices "
            f"of {format_bytes(self.memory)}, GB = 1e9 bytes",
            tuple(findings),
        )

    def _planned(self, claim: Fields, key: str = "plan") -> _Plan:
        name = claim.text(key)
        if name not in self.plans:
            raise claim.fail(key, f"names {name!r}; the plans are {', '.join(self.plans)}")
        return self.plans[name]

    # -- does a plan fit? ------------------------------------------------------------------------

    def _fit(self, model: Model, plan: _Plan, memory: int | None = None) -> Fit:
        """What ``fits`` says of a model on devices of which only the memory is known."""
        asked = plan, self.memory if memory is None else memory
        if asked not in self._answers:
            cluster = self._cluster(plan, asked[1])
            run = model, plan.layout, cluster, plan.recipe, self.sequence
            self._answers[asked] = fits(*run, step=_no_time)
        return self._answers[asked]

    def _cluster(self, plan: _Plan, memory: int) -> ClusterSpec:
        """As many devices as it takes, of which only the ``memory`` is known."""
        known = load_cluster(f"{max(self.devices, plan.layout.devices)}xA100-80GB")
        unnamed = replace(known.device, name="each device", memory_mib=None, memory_bytes=memory)
        return replace(known, device=unnamed, devices_per_node=self.per_node)

    def _held(self, plan: _Plan) -> int:
        """Bytes on the fullest device: of a model's tensors, or of the states alone."""
        return (
            plan.states(self.size)
            if self.model is None
            else self._fit(self.model, plan).memory.peak
        )

    def _verdict(self, plan: _Plan, memory: int | None = None) -> str:
        """One of VERDICTS."""
        memory = self.memory if memory is None else memory
        if self.model is not None:
            return self._fit(self.model, plan, memory).verdict
        overhead, device = overhead_of(plan.layout), self._cluster(plan, memory).device
        sure, most = (bound(device, load_recipe(plan.recipe)) for bound in (sure_of, most_of))
        return VERDICTS[judge(self._held(plan), overhead.certain, overhead.total, sure, most)]

    # -- the kinds of claims: (verdict, why, way out) ---------------------------------------------

    def fits(self, claim: Fields) -> tuple[str, str, str]:
        plan = self._planned(claim)
        verdict = self._verdict(plan)
        out = self._ways_out(plan) if verdict == "no" else ""
        return WORDS[verdict], self._why(plan, verdict), out

    def too_large(self, claim: Fields) -> tuple[str, str, str]:
        plan = self._planned(claim)
        verdict = self._verdict(plan)
        why = self._why(plan, verdict)
        if verdict != "fits":
            return HOLDS if verdict == "no" else BARELY, why, ""
        alone = "" if self.model is not None else "; only activations could make it too large"
        return FAILS, why, f"It fits{alone}."

    def _why(self, plan: _Plan, verdict: str) -> str:
        if self.model is not None:
            return f"{_capital(self._fit(self.model, plan).reason)}."
        held, overhead = self._held(plan), overhead_of(plan.layout)
        states, zero = _states(plan.recipe), plan.layout.zero
        whole = sum(s.bytes for s in states if not s.sharded(zero))
        sharded = sum(s.bytes for s in states if s.sharded(zero))
        parts = [f"{whole} B"] * bool(whole) + [f"{sharded} B / {plan.layout.dp}"] * bool(sharded)
        each = f"({' + '.join(parts)})" if sharded else parts[0]
        slices = f" / {plan.slices}" if plan.slices > 1 else ""
        why = (
            f"{each} x {_billions(self.size)}{slices} = {format_bytes(held)} a device by the "
            f"states alone"
        )
        if verdict == "no":
            context = format_bytes(overhead.certain)
            short = format_bytes(held + overhead.certain - self.memory)
            return f"{why}, and a CUDA context of {context}, of {self._room()}: {short} too much."
        left = f"{why}, of {self._room()}: {format_bytes(self.memory - held)} left"
        need = format_bytes(overhead.total)
        if verdict == "tight":
            less = "less" if self.memory - held < overhead.total else "hardly more"
            return f"{left}, {less} than the overhead of a run, {need}; activations come on top."
        return f"{left}; activations and overhead, {need}, come on top."

    def sizes_exist(self, claim: Fields) -> tuple[str, str, str]:
        plan, alone = self._planned(claim), load_recipe(claim.text("alone"))
        context = default_overhead(1).certain
        room = self.memory - context
        least, most = room / alone.bytes_per_parameter, room / plan.per_parameter()
        why = (
            f"Too large for one device by {alone.name} ({alone.bytes_per_parameter} B a parameter) "
            f"means more than {_billions(least)} parameters beside a CUDA context of "
            f"{format_bytes(context)}; {plan} holds at most {_billions(most)} by the states alone"
        )
        if most > least:
            return HOLDS, f"{why}: {_billions(least)} to {_billions(most)}.", ""
        windows = [
            f"ZeRO-{zero} up to {_billions(room / each)}"
            for zero in range(plan.layout.zero + 1, 4)
            if room / (each := plan.over(zero).per_parameter()) > least
        ]
        out = f"Sizes exist with {', '.join(windows)}." if windows else "No ZeRO stage helps."
        return FAILS, f"{why}: no size is both.", out

    def traffic_grows(self, claim: Fields) -> tuple[str, str, str]:
        before, after = (self._planned(claim, key) for key in ("from", "to"))
        times = claim.number("times")
        sent = [plan.sent(self.size) for plan in (before, after)]
        if not sent[0]:
            raise claim.fail(
                "from",
                f"names a plan with dp {before.layout.dp} and {before.recipe}, which sends "
                f"no gradients; a growth starts from dp 2 or more and a recipe that trains",
            )
        ratio = sent[1] / sent[0]
        told = [
            f"{format_bytes(size)} with d = {plan.layout.dp} ("
            + ", ".join(f"{what} {times} x {width} B" for what, times, width in plan.moved)
            + ")"
            for size, plan in zip(sent, (before, after), strict=True)
        ]
        why = (
            f"In rings a device sends (d-1)/d of its slice's bytes each time: {', '.join(told)}; "
            f"{ratio:.3g} times."
        )
        if ratio >= 0.95 * times:
            return HOLDS, why, ""
        return (
            FAILS,
            why,
            (
                "Look elsewhere: a step that is shorter than before waits for the same traffic, "
                "more replicas sit behind slower links, and each message pays its latency."
            ),
        )

    def used(self, claim: Fields) -> tuple[str, str, str]:
        p, m, share = claim.integer("stages"), claim.integer("microbatches"), claim.number("share")
        if share > 1:
            raise claim.fail("share", f"is a part of 1, such as 0.25 for 25 %; got {share:g}")
        used = 1 - float(bubble_fraction(p, m))
        busy = format_percent(used)
        why = f"With p = {p} equal stages and m = {m}, m/(m+p-1) = {busy} of the time is used."
        if abs(used - share) <= 0.01:
            return HOLDS, why, ""
        need = -(-round(share * (p - 1) * 1e9) // round((1 - share) * 1e9)) if share < 1 else None
        if used > share:
            return FAILS, why, f"It is busier: {busy}, not {format_percent(share)}."
        needs = f"{100 * share:.0f} % needs {need} micro-batches."
        return FAILS, why, needs if need else "All of it is out of reach."

    def fits_all(self, claim: Fields) -> tuple[str, str, str]:
        clusters = claim.object("clusters")
        if not clusters.values:
            raise claim.fail("clusters", 'is empty; name one or more, such as {"8 x 80 GB": {...}}')
        found: dict[str, dict[tuple[int, int, int], int]] = {}
        for name in clusters.values:
            one = clusters.object(name)
            devices, memory = _count(one, "devices"), _memory(one)
            per_node = _count(one, "devices_per_node", devices)
            one.done()
            found[name] = dict(self._fitting(devices, memory, per_node))
        common = set.intersection(*(set(each) for each in found.values()))
        counts = ", ".join(f"{len(each)} on {name}" for name, each in found.items())
        why = f"Of all choices of tp (within a node), pp and ZeRO, {counts} fit, {len(common)} all"
        if not common:
            lacking = ", ".join(name for name, each in found.items() if not each)
            out = f"Nothing fits on {lacking}." if lacking else "Each needs a layout of its own."
            return FAILS, f"{why}.", out
        ways = []
        for zero in sorted({c[2] for c in common}):
            tp, pp, _ = best = min((c for c in common if c[2] == zero), key=lambda c: c[0] * c[1])
            sizes = ", ".join(f"{format_bytes(each[best])} on {n}" for n, each in found.items())
            ways.append(f"{f'ZeRO-{zero}' if zero else 'no ZeRO'} tp {tp} x pp {pp} ({sizes})")
        return HOLDS, f"{why}. With the fewest slices: {'; '.join(ways)}.", ""

    def _fitting(
        self, devices: int, memory: int, per_node: int
    ) -> Iterator[tuple[tuple[int, int, int], int]]:
        """((tp, pp, zero), bytes on a device) of what leaves room for a run's overhead."""
        for tp, pp, zero in product(divisors(per_node), divisors(devices), range(4)):
            whole = devices % (tp * pp) == 0
            if self.model is not None:
                whole = whole and self.model.allows_tp(tp) and pp <= self.model.layers
            if whole:
                layout = Layout(dp=devices // (tp * pp), tp=tp, pp=pp, zero=zero)
                plan = _Plan(layout, self.recipe)
                if self._verdict(plan, memory) == "fits":
                    yield (tp, pp, zero), self._held(plan)

    def _room(self) -> str:
        return f"{format_bytes(self.memory)}"

    def _ways_out(self, plan: _Plan) -> str:
        """The smallest changes to ``plan`` that do, of each kind."""
        if self.model is not None:
            fix = self._fit(self.model, plan).smallest_fix
            return f"{_capital(str(fix))}." if fix else "No layout fits such devices."
        ways = []
        for zero in range(plan.layout.zero + 1, 4) if plan.layout.dp > 1 else ():
            if self._verdict(plan.over(zero)) != "no":
                held = format_bytes(self._held(plan.over(zero)))
                ways.append(f"ZeRO-{zero} would do: {held} by the states alone")
                break
        others = {name: replace(plan, recipe=name) for name in recipes() if _of_all(name)}
        lighter = [
            f"{name} {format_bytes(self._held(other))}"
            for name, other in others.items()
            if self._verdict(other) != "no"
        ]
        if lighter:
            ways.append(f"with the same layout these recipes fit: {', '.join(lighter)}")
        room = self.memory - overhead_of(plan.layout).certain
        if plan.layout.zero == 0 and plan.slices == 1 and plan.layout.dp > 1:
            ways.append("more replicas never help: each keeps all of it")
        if room > 0:
            slices = minimum_devices(self.size, plan.recipe, room)
            ways.append(f"without ZeRO, {slices} slices (tp x pp) or more hold the states")
        return (". ".join(map(_capital, ways))) + "."


_KINDS: dict[str, Callable[[_Premise, Fields], tuple[str, str, str]]] = {
    "fits": _Premise.fits,
    "too large": _Premise.too_large,
    "sizes exist": _Premise.sizes_exist,
    "traffic grows": _Premise.traffic_grows,
    "used": _Premise.used,
    "fits all": _Premise.fits_all,
}


_FLAT = ("dp", "tp", "pp", "zero", "microbatches")
"""Fields of a layout that say how parameters are sharded, whatever the model."""


def _no_time(*run: Any) -> None:
    raise ValueError("a device that is known by its memory alone has no speed")


def _capital(words: str) -> str:
    return words[:1].upper() + words[1:]


def _count(given: Fields, key: str, *default: int) -> int:
    """A number of devices, of which there are not so many."""
    count = given.integer(key, *default)
    if count > MOST_DEVICES:
        raise given.fail(key, f"must be at most {MOST_DEVICES:,}, got {short(count)}")
    return count


def _memory(given: Fields) -> int:
    """Bytes of a device: text with a unit, for "80" would be 80 bytes."""
    text = given.text("memory")
    size = parse_bytes(text)
    if size < 10**6:
        raise given.fail("memory", f"is {size} bytes; write the unit too, such as '{text}GB'")
    return size


def _of_all(recipe: str) -> bool:
    """Whether it trains all parameters, and not adapters beside them."""
    found = load_recipe(recipe)
    return found.trains and all(state.of == "parameters" for state in found.states)


def _states(recipe: str) -> list[State]:
    """What is kept for every parameter of the model."""
    return [state for state in load_recipe(recipe).states if state.of == "parameters"]


def _billions(parameters: float) -> str:
    return f"{parameters / 1e9:.4g} billion"
