"""Does a question's premise hold? Every claim worked out, with its formula and the way out.

    30e9 parameters, 32 devices of 24 GB                 claim          verdict
    plan B: pp 4 x tp 2 x dp 4                  ->       "B starts"     fails: 60 GB of 24 GB
                                                                        ZeRO-2 would do: 20.62 GB

Only what training keeps for every parameter counts here. A plan that fails by that alone cannot
run, whatever the architecture; one that holds still needs room for activations.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from html import escape
from itertools import product
from pathlib import Path

from tiledask.errors import ConfigError
from tiledask.plan.data import Fields, names, read, read_named, short
from tiledask.plan.fitting.overhead import default_overhead
from tiledask.plan.inputs.recipes import State, load_recipe, recipes, state_bytes
from tiledask.plan.inputs.specs import load_model
from tiledask.plan.pipelines.closed_form import bubble_fraction
from tiledask.plan.units import divisors, format_bytes, parse_bytes

__all__ = ["Critique", "Finding", "check_premise", "premises"]

HOLDS, BARELY, FAILS = "holds", "barely", "fails"


@dataclass(frozen=True)
class Finding:
    """One claim, worked out."""

    claim: str
    verdict: str
    """"holds", "barely" (what is left is less than the overhead of a run) or "fails"."""
    why: str
    """The numbers and the formula."""
    way_out: str = ""
    """What would make it true; empty if it is."""

    def __str__(self) -> str:
        out = f" {self.way_out}" if self.way_out else ""
        return f"{self.verdict}: {self.claim}. {self.why}{out}"


@dataclass(frozen=True, repr=False)
class Critique:
    """A premise's claims, each with its verdict; true if all of them hold."""

    question: str
    convention: str
    """What is counted for every parameter: some answers change with it."""
    findings: tuple[Finding, ...]

    def __bool__(self) -> bool:
        return all(finding.verdict != FAILS for finding in self.findings)

    def __repr__(self) -> str:
        failed = sum(finding.verdict == FAILS for finding in self.findings)
        return f"Critique({self.question}: {failed} of {len(self.findings)} claims fail)"

    def __str__(self) -> str:
        return "\n".join([f"{self.question} ({self.convention})", *map(str, self.findings)])

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{escape(f.claim)}</td><td><b>{f.verdict}</b></td>"
            f"<td style='text-align:left'>{escape(f.why)} {escape(f.way_out)}</td></tr>"
            for f in self.findings
        )
        return (
            f"<table><caption>{escape(self.question)}<br>{escape(self.convention)}</caption>"
            f"<tr><th>claim</th><th></th><th>worked out</th></tr>{rows}</table>"
        )

    def to_dict(self) -> dict:
        """The same as plain values, for JSON."""
        return {
            "question": self.question, "convention": self.convention, "holds": bool(self),
            "findings": [vars(finding) for finding in self.findings],
        }  # fmt: skip


def premises() -> tuple[str, ...]:
    """Names of the shipped premises."""
    return names("premises")


def check_premise(premise: str | os.PathLike | Mapping) -> Critique:
    """The Critique of a premise: a shipped name, a JSON file, or the same as a mapping.

    Keys: ``question``; ``parameters`` or ``model``; ``memory`` of a device, such as "24GB";
    ``devices``; ``recipe`` (default mixed-adam-16); ``plans``, from a name to any of dp, tp, pp,
    zero and recipe; ``claims``, a list of objects with ``claim``, the words, and ``kind``:

    - "fits", "too large": what the ``plan`` keeps for its parameters, against the memory;
    - "sizes exist": some number of parameters is too large for one device by the recipe
      ``alone`` and yet fits the ``plan``; for premises that do not say how large the model is;
    - "traffic grows": gradient bytes per device and step grow ``times``-fold from plan ``from``
      to plan ``to``, by ring all-reduce;
    - "used": with pp ``stages`` and ``microbatches``, devices compute a ``share`` of the time;
    - "fits all": one choice of tp, pp and ZeRO fits every cluster of ``clusters``, each with
      ``devices``, ``memory`` and ``devices_per_node``.

    What cannot be read is a ConfigError.

    >>> critique = check_premise("hardware-refresh")
    >>> bool(critique), [finding.verdict for finding in critique.findings]
    (False, ['holds', 'fails', 'holds'])
    """
    return _Premise(_read(premise)).critique


def _read(premise: str | os.PathLike | Mapping) -> Fields:
    if isinstance(premise, Mapping):
        return Fields(dict(premise), "premise")
    if not isinstance(premise, str | os.PathLike):
        raise ConfigError(
            f"a premise is a name, a path or a mapping, got {short(premise)}; there are "
            f"{', '.join(names('premises'))}"
        )
    text = os.fspath(premise)
    is_file = text.endswith(".json") or os.sep in text or Path(text).is_file()
    return read(text) if is_file else read_named("premises", text)


@dataclass(frozen=True)
class _Plan:
    """How the parameters are dealt out, as a sentence can say it."""

    name: str
    dp: int
    tp: int
    pp: int
    zero: int
    recipe: str

    @property
    def slices(self) -> int:
        return self.tp * self.pp

    @property
    def devices(self) -> int:
        return self.dp * self.slices

    def bytes(self, parameters: int, zero: int | None = None, recipe: str | None = None) -> int:
        """On one device, of all that is kept for its parameters."""
        zero = self.zero if zero is None else zero
        mine = -(-parameters // self.slices)
        return sum(state_bytes(mine, recipe or self.recipe, zero, self.dp).values())

    def per_parameter(self) -> float:
        """Bytes on one device for every parameter of the model."""
        states = _states(self.recipe)
        dealt = (s.bytes / (self.dp if s.sharded(self.zero) else 1) for s in states)
        return sum(dealt) / self.slices

    def __str__(self) -> str:
        words = [f"{n} {getattr(self, n)}" for n in ("dp", "tp", "pp") if getattr(self, n) > 1]
        return " x ".join(words or ["one device"]) + (f", ZeRO-{self.zero}" if self.zero else "")


class _Premise:
    """The claims of a premise, worked out in turn."""

    def __init__(self, given: Fields):
        self.given = given
        self.question = given.text("question")
        self.recipe = load_recipe(given.text("recipe", "mixed-adam-16")).name
        self.memory = _memory(given)
        self.devices = given.integer("devices", 1)
        self.plans = {"one device": _Plan("one device", 1, 1, 1, 0, self.recipe)}
        if "plans" in given:
            inner = given.object("plans")
            self.plans |= {name: self._plan(name, inner.object(name)) for name in inner.values}
        self.claims = given.objects("claims")
        given.text("source", "")
        given.text("name", "")
        self._size = self._parameters()
        given.done()

    def _parameters(self) -> int | None:
        if "model" in self.given:
            return load_model(self.given.text("model")).parameters
        return self.given.integer("parameters") if "parameters" in self.given else None

    def _plan(self, name: str, given: Fields) -> _Plan:
        sizes = [given.integer(key, 1) for key in ("dp", "tp", "pp")]
        zero = given.integer("zero", 0, minimum=0)
        plan = _Plan(name, *sizes, zero, load_recipe(given.text("recipe", self.recipe)).name)
        given.done()
        if plan.devices > self.devices:
            raise given.fail(
                "dp", f"x tp x pp makes {plan.devices} devices, the premise has {self.devices}; "
                f"lower one of them or raise devices",
            )  # fmt: skip
        if zero > 3:
            raise given.fail("zero", f"is 0, 1, 2 or 3, got {zero}")
        return plan

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
        return Critique(
            self.question,
            f"{size}{_convention(self.recipe)}; {self.devices} devices of "
            f"{format_bytes(self.memory)}, GB = 1e9 bytes",
            tuple(self._finding(claim) for claim in self.claims),
        )

    def _finding(self, claim: Fields) -> Finding:
        words, kind = claim.text("claim"), claim.text("kind")
        if kind not in _KINDS:
            raise claim.fail("kind", f"is {kind!r}; there are {', '.join(_KINDS)}")
        verdict, why, way_out = _KINDS[kind](self, claim)
        claim.done()
        return Finding(words, verdict, why, way_out)

    def _planned(self, claim: Fields, key: str = "plan") -> _Plan:
        name = claim.text(key)
        if name not in self.plans:
            raise claim.fail(key, f"names {name!r}; the plans are {', '.join(self.plans)}")
        return self.plans[name]

    # -- the kinds of claims: (verdict, why, way out) ---------------------------------------------

    def fits(self, claim: Fields) -> tuple[str, str, str]:
        plan = self._planned(claim)
        held = plan.bytes(self.size)
        room = self.memory - held
        why = f"{_sum(plan, self.size)} = {format_bytes(held)} a device, of {self._room()}"
        if room < 0:
            return FAILS, f"{why}: {format_bytes(-room)} too much.", self._ways_out(plan)
        need = default_overhead(plan.devices).total
        left = f"{format_bytes(room)} are left for activations"
        if room < need:
            return BARELY, f"{why}; {left}, and a run takes {format_bytes(need)} besides.", ""
        return HOLDS, f"{why}; {left} and overhead.", ""

    def too_large(self, claim: Fields) -> tuple[str, str, str]:
        plan = self._planned(claim)
        held = plan.bytes(self.size)
        why = f"{_sum(plan, self.size)} = {format_bytes(held)} a device, of {self._room()}."
        if held > self.memory:
            return HOLDS, why, ""
        return FAILS, why, "It fits; only activations could make it too large."

    def sizes_exist(self, claim: Fields) -> tuple[str, str, str]:
        plan, alone = self._planned(claim), load_recipe(claim.text("alone"))
        least = self.memory / alone.bytes_per_parameter
        most = self.memory / plan.per_parameter()
        why = (
            f"Too large for one device by {alone.name} ({alone.bytes_per_parameter} B a parameter) "
            f"means more than {_billions(least)} parameters; {plan} holds at most {_billions(most)}"
        )
        if most > least:
            return HOLDS, f"{why}: {_billions(least)} to {_billions(most)}.", ""
        wider = [_Plan("", plan.dp, plan.tp, plan.pp, z, plan.recipe) for z in range(4)]
        windows = [
            f"ZeRO-{p.zero} up to {_billions(self.memory / p.per_parameter())}"
            for p in wider[plan.zero + 1 :]
            if plan.dp > 1 and self.memory / p.per_parameter() > least
        ]
        out = f"Sizes exist with {', '.join(windows)}." if windows else "No ZeRO stage helps."
        return FAILS, f"{why}: no size is both.", out

    def traffic_grows(self, claim: Fields) -> tuple[str, str, str]:
        before, after = (self._planned(claim, key) for key in ("from", "to"))
        times = claim.number("times")
        sent = [_gradient_traffic(plan, self.size) for plan in (before, after)]
        if not sent[0]:
            raise claim.fail(
                "from", f"names a plan with dp {before.dp}, which sends no gradients; a growth "
                f"starts from dp 2 or more",
            )  # fmt: skip
        ratio = sent[1] / sent[0]
        why = (
            f"In rings a device sends 2 (d-1)/d of its slice's gradients (3 (d-1)/d with ZeRO-3): "
            f"{format_bytes(sent[0])} with d = {before.dp}, {format_bytes(sent[1])} with "
            f"d = {after.dp}, {ratio:.3g} times."
        )
        if ratio >= 0.95 * times:
            return HOLDS, why, ""
        return FAILS, why, (
            "Look elsewhere: a step that is shorter than before waits for the same traffic, more "
            "replicas sit behind slower links, and each message pays its latency."
        )  # fmt: skip

    def used(self, claim: Fields) -> tuple[str, str, str]:
        p, m, share = claim.integer("stages"), claim.integer("microbatches"), claim.number("share")
        if share > 1:
            raise claim.fail("share", f"is a part of 1, such as 0.25 for 25 %; got {share:g}")
        used = 1 - float(bubble_fraction(p, m))
        why = f"With p = {p} equal stages and m = {m}, m/(m+p-1) = {used:.1%} of the time is used."
        if abs(used - share) <= 0.01:
            return HOLDS, why, ""
        need = -(-round(share * (p - 1) * 1e9) // round((1 - share) * 1e9)) if share < 1 else None
        out = f"{share:.0%} needs {need} micro-batches." if need else "All of it is out of reach."
        return FAILS, why, out if used < share else f"It is busier: {used:.1%}, not {share:.1%}."

    def fits_all(self, claim: Fields) -> tuple[str, str, str]:
        clusters = claim.object("clusters")
        if not clusters.values:
            raise claim.fail("clusters", 'is empty; name one or more, such as {"8 x 80 GB": {...}}')
        found: dict[str, dict[tuple[int, int, int], int]] = {}
        for name in clusters.values:
            one = clusters.object(name)
            devices, memory = one.integer("devices"), _memory(one)
            per_node = one.integer("devices_per_node", devices)
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
        room = memory - default_overhead(devices).total
        for tp, pp, zero in product(divisors(per_node), divisors(devices), range(4)):
            if devices % (tp * pp) == 0:
                plan = _Plan("", devices // (tp * pp), tp, pp, zero, self.recipe)
                held = plan.bytes(self.size)
                if held <= room:
                    yield (tp, pp, zero), held

    def _room(self) -> str:
        return f"{format_bytes(self.memory)}"

    def _ways_out(self, plan: _Plan) -> str:
        """The smallest changes to ``plan`` that do, of each kind."""
        ways = []
        for zero in range(plan.zero + 1, 4) if plan.dp > 1 else ():
            held = plan.bytes(self.size, zero=zero)
            if held <= self.memory:
                ways.append(f"ZeRO-{zero} would do: {format_bytes(held)}")
                break
        lighter = [
            f"{name} {format_bytes(plan.bytes(self.size, recipe=name))}"
            for name in recipes()
            if _of_all(name) and plan.bytes(self.size, recipe=name) < self.memory
        ]
        if lighter:
            ways.append(f"with the same layout these recipes fit: {', '.join(lighter)}")
        whole = load_recipe(plan.recipe).bytes_per_parameter * self.size
        slices = -(-whole // self.memory)
        if plan.zero == 0 and plan.slices == 1 and plan.dp > 1:
            ways.append("more replicas never help: each keeps all of it")
        ways.append(f"without ZeRO, {slices} slices (tp x pp) or more hold it")
        return (". ".join(way[0].upper() + way[1:] for way in ways)) + "."


_KINDS: dict[str, Callable[[_Premise, Fields], tuple[str, str, str]]] = {
    "fits": _Premise.fits,
    "too large": _Premise.too_large,
    "sizes exist": _Premise.sizes_exist,
    "traffic grows": _Premise.traffic_grows,
    "used": _Premise.used,
    "fits all": _Premise.fits_all,
}


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


def _convention(recipe: str) -> str:
    states = ", ".join(f"{s.tensor} {s.bytes}" for s in _states(recipe))
    apart = "" if _of_all(recipe) or not load_recipe(recipe).trains else "; adapters left out"
    each = sum(s.bytes for s in _states(recipe))
    return f"{recipe}: {each} B a parameter ({states}{apart})"


def _states(recipe: str) -> list[State]:
    """What is kept for every parameter of the model."""
    return [state for state in load_recipe(recipe).states if state.of == "parameters"]


def _sum(plan: _Plan, parameters: int) -> str:
    """How the bytes of a device come about."""
    states = _states(plan.recipe)
    whole = sum(s.bytes for s in states if not s.sharded(plan.zero))
    dealt = sum(s.bytes for s in states if s.sharded(plan.zero))
    parts = [f"{whole} B"] * bool(whole) + [f"{dealt} B / {plan.dp}"] * bool(dealt)
    each = f"({' + '.join(parts)})" if dealt else parts[0]
    return f"{each} x {_billions(parameters)}" + (f" / {plan.slices}" if plan.slices > 1 else "")


def _gradient_traffic(plan: _Plan, parameters: int) -> float:
    """Bytes that a device sends for the gradients of a step."""
    mine = parameters / plan.slices * load_recipe(plan.recipe).gradient_bytes
    times = 3 if plan.zero == 3 else 2  # ZeRO-3 also gathers the weights, in either direction
    return times * (plan.dp - 1) / plan.dp * mine


def _billions(parameters: float) -> str:
    return f"{parameters / 1e9:.4g} billion"
