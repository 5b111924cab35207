"""The request of `fit` and `plan`, as typed or imported, and what may come with an answer."""

import argparse
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from math import gcd
from typing import Any

import tiledask as td
from tiledask.errors import ConfigError
from tiledask.plan.frameworks.exchange import FRAMEWORKS
from tiledask.plan.inputs.load import ASSUMED
from tiledask.plan.inputs.run import check_trains
from tiledask.plan.tables import Part
from tiledask.plan.timing.budget import budget
from tiledask.plan.timing.calibration import calibration_of
from tiledask.plan.units import format_percent, parse_count
from tiledask.plan.whole import whole_number

__all__ = ["Request", "request_of", "usual_batch"]

MOST_TOKENS = 4_000_000
"""Of a step whose batch nobody gave, where that is a sequence a device or more."""


@dataclass
class Request:
    """What was typed or imported."""

    args: argparse.Namespace
    model: Any
    cluster: Any
    recipe: Any
    sequence: int
    layout: Any = None
    """None: whichever is best."""
    notes: list[str] = field(default_factory=list)
    """What nobody said and is assumed, for one line."""
    read: dict[str, Any] = field(default_factory=dict)
    """What was read from another program's configuration, for --json."""

    @property
    def by(self) -> dict[str, Any]:
        """Whose measurements the estimates take."""
        return {"calibration": self.args.calibration, "framework": self.args.framework}

    @property
    def options(self) -> dict[str, Any]:
        """Those of td.search and its like."""
        return {"sequence": self.sequence, "recipe": self.recipe, **self.by}

    @property
    def run(self) -> tuple[Any, ...]:
        """The arguments of td.fits and its like."""
        return self.model, self.layout, self.cluster, self.recipe, self.sequence

    @property
    def assumed(self) -> list[str]:
        """A line of what is assumed; none where everything was said."""
        return [f"assumed: {'; '.join(self.notes)}"] if self.notes else []

    @property
    def sources(self) -> list[str]:
        """A line of where the model's numbers come from, if that is known."""
        return [f"{self.model.name}: {self.model.source}"] if self.model.source else []

    def batch(self) -> int:
        """Sequences of a step; those that nobody said are among what is assumed."""
        if self.args.batch is not None:
            return int(self.args.batch)
        batch = usual_batch(self.cluster.devices, self.sequence)
        self.notes.append(f"a step of {batch:,} sequences of {self.sequence:,} tokens")
        return batch

    def command(self, devices: int = 0, layout: Any = None, **changed: Any) -> str:
        """`tiledask fit` with this layout, or the same question with other arguments, to be copied.
        ``devices``: of the cluster, in place of those that were typed."""
        given, cluster = vars(self.args) | changed, self.args.cluster
        typed = re.fullmatch(r"\s*[0-9]+\s*[x×]\s*(.+?)\s*", cluster, re.IGNORECASE)
        if devices and typed:
            cluster = f"{devices}x{typed[1].replace(' ', '')}"
        words = [given["model"], cluster, "--sequence", f"{self.sequence}"]
        if layout is not None and given["lora_rank"] is None:
            given["recipe"] = given["recipe"] or self.recipe.name
        for name in ("recipe", "lora_rank", "offload", "framework", "calibration"):
            if given.get(name) is not None:
                words += [f"--{name.replace('_', '-')}", f"{given[name]}"]
        if layout is None and given["batch"] is not None and not given["offload"]:
            words += ["--batch", f"{given['batch']}"]
        return shlex.join(["tiledask", "fit", *words, *(layout.options if layout else ())])

    def extras(self, step: Any, saving: Any, result: dict[str, Any]) -> Iterator[Part]:
        """What --tokens, --export and --critique ask for of the layout; and into the result."""
        args = self.args
        if args.tokens is not None:
            check_trains(self.recipe, timed=True)
        if step is not None:
            result |= {"step": step.to_dict(), "saving": saving.to_dict()}
        if step is not None and args.tokens is not None:
            cost = step.budget(args.tokens, args.price, saving.stretch)
            lost = format_percent(cost.stretch - 1)
            off = f"{step.within}, {lost} for savings and losses in it"
            yield f"{cost.line}: {off}"
            result["budget"] = cost._asdict()
        if args.export:
            options = {"recipe": self.recipe, "sequence": self.sequence}
            made = td.export_config(self.model, self.layout, args.export, **options)
            notes = [f"  {note}" for note in made.notes]
            yield f"for {made.framework}", "\n".join(["", made.text.rstrip("\n"), *notes])
            facts = {"framework": made.framework, "text": made.text, "notes": [*made.notes]}
            result["export"] = facts
        if getattr(args, "critique", False):
            found = td.critique(*self.run, **self.by)
            yield from found.printed()
            result["critique"] = found.to_dict()


def request_of(args: argparse.Namespace) -> Request:
    """The model, the cluster and how it is trained, as typed, and what is assumed of them."""
    check_cost(args)
    given = vars(args)
    typed: dict[str, Any] = {each.name: given.get(each.name) for each in fields(td.Layout)}
    typed = {name: each for name, each in typed.items() if each is not None and each is not False}
    named = [name for name in FRAMEWORKS if given.get(name)]
    if len(named) > 1:
        raise ConfigError(f"one configuration at a time, got --{' and --'.join(named)}")
    if args.model is None and not named:
        raise ConfigError("a model and a cluster are named, such as: fit 200B 80x40GB")
    cluster = td.load_cluster(args.cluster)
    if named:
        return _imported(args, typed, named[0], cluster)
    model, recipe = td.load_model(args.model), recipe_of(args, cluster.device)
    request = Request(args, model, cluster, recipe, args.sequence or model.usual_sequence)
    known = calibration_of(cluster.device, recipe, **request.by)
    sized = f"{model.layers} layers of width {model.hidden:,}, {model.parameters:,} parameters"
    request.notes += [sized] * model.source.startswith(ASSUMED)
    unfitted = f"layers of {model.unchecked} are fitted to no run: 35 % more either way"
    request.notes += [*model.notes, *[unfitted] * bool(model.unchecked)]
    request.notes += [cluster.assumed] * bool(cluster.assumed)
    request.notes += [f"run by {known.framework} ({known.why})"] * known.usual
    if typed:
        model.check_tp(typed.get("tp", 1), cluster.devices)
        request.layout = _filled(request, typed)
    return request


def _filled(request: Request, typed: dict[str, Any]) -> Any:
    """The layout that was typed, with copies that fill the cluster and the batch's micro-batches,
    where nobody said how many."""
    if "dp" not in typed:
        tp, pp, cp = (typed.get(axis, 1) for axis in ("tp", "pp", "cp"))
        split = typed.get("ep", 1) * (typed.get("expert_tp") or tp)
        step = split // gcd(split, tp * cp) if min(split, tp * cp) > 0 else 1
        fills = request.cluster.devices // max(1, tp * pp * cp)
        typed = typed | {"dp": max(step, fills // step * step, 1)}
        request.notes += [f"dp {typed['dp']} fills the cluster"] * (typed["dp"] > 1)
    each = _microbatches(request.args, typed["dp"], typed.get("microbatch", 1))
    return td.Layout(**typed, **each)


def _microbatches(args: argparse.Namespace, dp: int, microbatch: int) -> dict[str, Any]:
    """The micro-batches of a copy that --batch asks for; nothing without it."""
    if args.batch is None:
        return {}
    if args.microbatches is not None:
        raise ConfigError("--batch says how many micro-batches a copy has; no --microbatches")
    each = max(1, dp * microbatch)
    if args.batch % each:
        near = max(1, round(args.batch / each)) * each
        raise ConfigError(
            f"--batch {args.batch} is no multiple of the {each} sequences that dp {dp} x "
            f"microbatch {microbatch} take at once; {near} is"
        )
    return {"microbatches": args.batch // each}


def _imported(args: argparse.Namespace, typed: dict[str, Any], name: str, cluster: Any) -> Request:
    """What the configuration of another program says; what is typed besides goes before."""
    given = {"model": args.model, "devices": cluster.devices}
    found = td.import_config(name, getattr(args, name), **given)
    layout = replace(found.layout, **typed)
    layout = replace(layout, **_microbatches(args, layout.dp, layout.microbatch))
    chosen = args.recipe is not None or args.lora_rank is not None
    recipe = recipe_of(args, cluster.device) if chosen else td.load_recipe(found.recipe)
    notes = [f"{found.model!r}, {shlex.join(layout.options)}, recipe {recipe.name}"]
    sequence = args.sequence or found.sequence
    args.framework = args.framework or (None if args.calibration else found.framework)
    read = {"layout": vars(layout), "recipe": recipe.name, "assumed": [*found.assumed]}
    request = Request(args, found.model, cluster, recipe, sequence, layout, notes, read)
    known = calibration_of(cluster.device, recipe, **request.by)
    options = {f"--{name.replace('_', '-')}" for name, each in vars(args).items() if each}
    said = [each for each in found.assumed if not options & {*re.findall("--[a-z-]+", each)}]
    request.notes += [f"read from {name}; run by {known.framework}", *said]
    return request


def recipe_of(args: argparse.Namespace, device: Any) -> Any:
    """The Recipe that is named, of --lora-rank, or the framework's own."""
    name = args.recipe
    if args.lora_rank is not None:
        base = td.load_recipe(name or "lora")
        if not base.adapters:
            raise ConfigError(
                f"--lora-rank trains adapters alone, and --recipe {base.name} all weights; leave "
                f"--recipe out, or name lora or qlora"
            )
        return td.lora(args.lora_rank, base.adapters, base)
    if name is None and (args.framework or args.calibration):
        by = {"calibration": args.calibration, "framework": args.framework}
        name = calibration_of(device, td.load_recipe("mixed-adam-16"), **by).trains
    return td.load_recipe(name or "mixed-adam-16")


def usual_batch(devices: int, sequence: int) -> int:
    """Sequences of a step that nobody said: 8 a device, or fewer where that is more than 4 million
    tokens, and 1 a device at least."""
    return devices * max(1, min(8, MOST_TOKENS // (sequence * devices)))


def check_cost(args: argparse.Namespace) -> None:
    """Refuse tokens, a price, or counts that are none, before the work begins."""
    for name in ("sequence", "batch", "lora_rank"):
        if (value := vars(args).get(name)) is not None:
            typed = "BATCH" if (args.command, name) == ("plan", "batch") else f"--{name}"
            whole_number(typed.replace("_", "-"), value, 1)
    if args.tokens is not None:
        args.tokens = parse_count(args.tokens)
        budget(args.tokens, 1.0, 1, (0.0, 0.0), args.price)  # a mistake in them is the answer
    elif args.price is not None:
        raise ConfigError("--price is for --tokens, such as --tokens 15T --price 2.5")
