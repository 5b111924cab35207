"""Options as rows of a table, and what `fit` and `plan` share: how a model is trained, what it
costs, which step it takes."""

import argparse
import re
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import tiledask as td
from tiledask.errors import ConfigError, short
from tiledask.lab.table import say
from tiledask.plan.inputs.sized import ASSUMED
from tiledask.plan.timing.budget import Budget
from tiledask.plan.timing.calibration import calibration_of
from tiledask.plan.units import format_percent, parse_bytes
from tiledask.plan.whole import whole_number, whole_rule

__all__ = [
    "CLUSTER",
    "COSTS",
    "EXPORTS",
    "MODEL",
    "SETTLED",
    "TRAINED",
    "WHOLE",
    "Heading",
    "Request",
    "add_options",
    "assumed_by",
    "batch_of",
    "check_cost",
    "recipe_of",
    "recipe_words",
    "request_of",
    "say_assumed",
    "show_budget",
    "tensor_bytes",
    "usual_batch",
    "whole",
]

Result = tuple[int, Any]
"""The exit code, and what --json prints."""


class Heading(NamedTuple):
    """A heading of the help, above the options that follow it."""

    title: str
    words: str = ""


def whole(text: str) -> int:
    """A whole number, as argparse reads one."""
    if not re.fullmatch(r"[+-]?[0-9]{1,30}", text):
        raise argparse.ArgumentTypeError(f"must be {whole_rule()}, got {short(text)}")
    return int(text)


def add_options(parser: argparse.ArgumentParser, rows: Any) -> None:
    """Rows of a command: ("--name METAVAR" or "NAME", its words, settings of add_argument); a flag
    has neither metavar nor settings. A Heading begins a part of the help, a text ends it."""
    into: Any = parser
    for row in rows:
        if isinstance(row, str):
            parser.epilog = row
        elif isinstance(row, Heading):
            into = parser.add_argument_group(row.title, row.words or None)
        else:
            names, words, *more = row
            flags = [name for name in names.split() if name.startswith("--")]
            (metavar,) = [name for name in names.split() if name not in flags] or [None]
            settings = dict(*more)
            if metavar:
                settings["metavar"] = metavar
            elif not settings:
                settings["action"] = "store_true"
            into.add_argument(*(flags or [metavar.lower()]), help=words, **settings)


WHOLE = {"type": whole}
EXPORTS = ("megatron", "torchtitan", "deepspeed")
"""What td.export_config writes, without loading it."""
MODEL = "gpt-200b, or another of `tiledask list models`; 70B; a config.json; a name on the hub"
CLUSTER = "80xA100-40GB, a card of `tiledask list hardware`; 80x40GB, by its memory; a JSON file"
SETTLED = 40
"""Layouts that are put in order by simulation before the first ones are shown."""
MOST_TOKENS = 4_000_000
"""Of a step whose batch nobody gave, where that is a sequence a device or more."""

TRAINED = (
    Heading("how it is trained"),
    (
        "--sequence TOKENS",
        "length of a sequence (2048, or less where the model has fewer positions)",
        WHOLE,
    ),
    (
        "--recipe NAME",
        "bytes of a parameter: a name of `tiledask list recipes`, or a JSON file (mixed-adam-16, "
        "or the framework's)",
    ),
    (
        "--lora-rank R",
        "train adapters of rank R alone; with --recipe qlora over weights of 4 bits",
        WHOLE,
    ),
    ("--framework NAME", "whose kernels and overlaps, such as megatron-2025"),
    ("--calibration FILE", "of td.calibrate, in its place"),
)
COSTS = (
    Heading("what comes out"),
    ("--explain", "what is assumed, and why"),
    ("--tokens N", "days and device-hours for N, such as 15T"),
    ("--price AMOUNT", "with --tokens: of a device for an hour", {"type": float}),
    (
        "--export FRAMEWORK",
        f"the layout, the first of several, for {', '.join(EXPORTS)}",
        {"choices": EXPORTS},
    ),
)


@dataclass
class Request:
    """What was typed or imported."""

    model: Any
    cluster: Any
    recipe: Any
    sequence: int
    layout: Any = None
    """None: whichever is best."""
    assumed: list[str] = field(default_factory=list)
    """What nobody said, for one line."""
    imported: Any = None
    way_out: str = ""
    """What a step of one micro-batch a copy stands for, where nobody gave a batch."""


def request_of(args: argparse.Namespace) -> Request:
    """The model, the cluster and how it is trained, as typed, and what is assumed of them."""
    model, cluster = td.load_model(args.model), td.load_cluster(args.cluster)
    recipe = recipe_of(args, cluster.device)
    sequence = model.usual_sequence if args.sequence is None else int(args.sequence)
    known = calibration_of(cluster.device, recipe, **assumed_by(args))
    words = []
    if model.source.startswith(ASSUMED):
        words.append(
            f"{model.layers} layers of width {model.hidden:,}, {model.parameters:,} parameters"
        )
    words += [cluster.assumed] * bool(cluster.assumed)
    words += [f"run by {known.framework} ({known.why})"] * known.usual
    return Request(model, cluster, recipe, sequence, assumed=words)


def assumed_by(args: argparse.Namespace) -> dict[str, Any]:
    """Whose measurements the estimates take."""
    return {"calibration": args.calibration, "framework": args.framework}


def tensor_bytes(text: str | None) -> int:
    """The bytes of one weight that stand where a model does, such as 26GB; 0 if that is none."""
    sized = text and re.fullmatch(r"\s*[0-9.]+\s*[kmgtp]i?b\s*", text, re.IGNORECASE)
    return parse_bytes(text) if sized else 0


def recipe_of(args: argparse.Namespace, device: Any) -> Any:
    """The Recipe that is named, of --lora-rank, or the framework's own."""
    name = args.recipe
    if args.lora_rank is not None:
        base = td.load_recipe(name or "lora")
        if base.adapters is None:
            raise ConfigError(
                f"--lora-rank trains adapters alone, and --recipe {base.name} all weights; leave "
                f"--recipe out, or name lora or qlora"
            )
        return td.lora(args.lora_rank, base.adapters.matrices, base)
    if name is None and (args.framework or args.calibration):
        name = calibration_of(device, td.load_recipe("mixed-adam-16"), **assumed_by(args)).trains
    return td.load_recipe(name or "mixed-adam-16")


def recipe_words(args: argparse.Namespace, recipe: Any) -> list[str]:
    """The options that name ``recipe`` again."""
    words = ["--recipe", args.recipe or recipe.name]
    if args.lora_rank is not None:
        words = [*(words if args.recipe else []), "--lora-rank", str(args.lora_rank)]
    for name in ("offload", "framework", "calibration"):
        given = vars(args).get(name)
        words += [f"--{name}", given] if given else []
    return words


def usual_batch(devices: int, sequence: int) -> int:
    """Sequences of a step that nobody said: 8 a device, or fewer where that is more than 4 million
    tokens, and 1 a device at least."""
    return devices * max(1, min(8, MOST_TOKENS // (sequence * devices)))


def batch_of(args: argparse.Namespace, asked: Request) -> int:
    """Sequences of a step; those that nobody said are among what is assumed."""
    if args.batch is not None:
        return int(args.batch)
    batch = usual_batch(asked.cluster.devices, asked.sequence)
    asked.assumed.append(f"a step of {batch:,} sequences of {asked.sequence:,} tokens")
    return batch


def say_assumed(asked: Request, console: Any) -> None:
    """All in one line."""
    if asked.assumed:
        say(console, f"assumed: {'; '.join(asked.assumed)}", wrap=True)


def check_cost(args: argparse.Namespace) -> None:
    """Refuse tokens, a price, or counts that are none, before the work begins."""
    for name in ("sequence", "batch", "lora_rank"):
        if (value := vars(args).get(name)) is not None:
            typed = "BATCH" if (args.command, name) == ("plan", "batch") else f"--{name}"
            whole_number(typed.replace("_", "-"), value, 1)
    if args.tokens is not None:
        Budget(args.tokens, 1.0, 1, args.price)


def show_budget(args: argparse.Namespace, step: Any, saving: Any, console: Any) -> dict[str, Any]:
    """Facts of the step; days, device-hours and money of --tokens."""
    facts = {"step": step.to_dict(), "saving": saving.to_dict()}
    if args.tokens is None:
        return facts
    budget = step.budget(args.tokens, args.price, saving.stretch)
    lost = format_percent(budget.stretch - 1)
    share = f"{100 * budget.error:.0f} % either way, {lost} for savings and losses in it"
    say(console, f"{budget.line}: {share}", wrap=True)
    names = ("tokens", "days", "device_hours", "price", "cost", "stretch", "error")
    return facts | {"budget": {name: getattr(budget, name) for name in names}}
