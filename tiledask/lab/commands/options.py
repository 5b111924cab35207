"""What `tiledask fit` and `plan` share: how the model is trained, what it costs, files."""

import argparse
import re
from typing import Any

import tiledask as td
from tiledask.errors import ConfigError, short
from tiledask.lab.table import say
from tiledask.plan.inputs.load import as_model
from tiledask.plan.inputs.sized import ASSUMED
from tiledask.plan.timing.budget import Budget
from tiledask.plan.timing.calibration import calibration_of
from tiledask.plan.units import format_percent, parse_bytes
from tiledask.plan.whole import whole_number, whole_rule

__all__ = [
    "EXPORTS",
    "MODEL",
    "SETTLED",
    "batch_of",
    "check_cost",
    "clusters",
    "cost_options",
    "recipe_of",
    "run_options",
    "say_assumed",
    "sequence_of",
    "shape_of",
    "show_budget",
    "usual_batch",
    "whole",
]

EXPORTS = ("megatron", "torchtitan", "deepspeed")
"""What td.export_config writes, without loading it."""
MODEL = "gpt-200b, or another of `tiledask list models`; 70B; a config.json; a name on the hub"
CLUSTER = "80xA100-40GB, a card of `tiledask list hardware`; 80x40GB, by its memory; a JSON file"
SETTLED = 40
"""Layouts that are put in order by simulation before the first ones are shown."""
MOST_TOKENS = 4_000_000
"""Of a step whose batch nobody gave, where that is a sequence a device or more."""


def whole(text: str) -> int:
    if not re.fullmatch(r"[+-]?[0-9]{1,30}", text):
        raise argparse.ArgumentTypeError(f"must be {whole_rule()}, got {short(text)}")
    return int(text)


def run_options(sub: argparse.ArgumentParser) -> Any:
    """How the model is trained, and by which program."""
    group = sub.add_argument_group("how it is trained")
    group.add_argument(
        "--sequence",
        type=whole,
        metavar="TOKENS",
        help="length of a sequence (2048, or less where the model has fewer positions)",
    )
    group.add_argument(
        "--recipe",
        metavar="NAME",
        help="bytes of a parameter: a name of `tiledask list recipes`, or a JSON file "
        "(mixed-adam-16, or the framework's)",
    )
    group.add_argument(
        "--lora-rank",
        type=whole,
        metavar="R",
        help="train adapters of rank R alone; with --recipe qlora over weights of 4 bits",
    )
    group.add_argument(
        "--framework", metavar="NAME", help="whose kernels and overlaps, such as megatron-2025"
    )
    group.add_argument("--calibration", metavar="FILE", help="of td.calibrate, in its place")
    return group


def cost_options(sub: argparse.ArgumentParser) -> Any:
    """What a training costs, and where results go."""
    group = sub.add_argument_group("what comes out")
    group.add_argument("--explain", action="store_true", help="what is assumed, and why")
    group.add_argument("--tokens", metavar="N", help="days and device-hours for N, such as 15T")
    group.add_argument(
        "--price", type=float, metavar="AMOUNT", help="with --tokens: of a device for an hour"
    )
    words = f"the layout, the first of several, for {', '.join(EXPORTS)}"
    group.add_argument("--export", metavar="FRAMEWORK", choices=EXPORTS, help=words)
    return group


def clusters(text: str) -> tuple[str, int] | None:
    """(what a device is called, how many there are) as typed; None for a file."""
    match = re.fullmatch(r"\s*([0-9]+)\s*[x×]\s*(.+?)\s*", text, re.IGNORECASE)
    return (match[2].replace(" ", ""), int(match[1])) if match else None


def tensor_bytes(text: str | None) -> int:
    """The bytes of one weight that stand where a model does, such as 26GB; 0 if that is none."""
    sized = text and re.fullmatch(r"\s*[0-9.]+\s*[kmgtp]i?b\s*", text, re.IGNORECASE)
    return parse_bytes(text) if sized else 0


def sequence_of(args: argparse.Namespace, model: Any) -> int:
    """Tokens as given, or 2048, or as many positions as the model has learned."""
    return as_model(model).usual_sequence if args.sequence is None else int(args.sequence)


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
        usual = td.load_recipe("mixed-adam-16")
        name = calibration_of(device, usual, args.calibration, args.framework).trains
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


def batch_of(given: int | None, devices: int, sequence: int, assumed: list[str]) -> int:
    """Sequences of a step; those that nobody said are written to ``assumed``."""
    if given is not None:
        return given
    batch = usual_batch(devices, sequence)
    assumed.append(f"a step of {batch:,} sequences of {sequence:,} tokens")
    return batch


def shape_of(args: argparse.Namespace, model: Any, cluster: Any, recipe: Any) -> list[str]:
    """What is assumed of a model and of cards of which only the size is known, and whose program
    runs it; briefly."""
    known = calibration_of(cluster.device, recipe, args.calibration, args.framework)
    words = []
    if model.source.startswith(ASSUMED):
        words = [
            f"{model.layers} layers of width {model.hidden:,}, {model.parameters:,} parameters"
        ]
    words += [cluster.assumed] * bool(cluster.assumed)
    return words + [f"run by {known.framework} ({known.why})"] * known.usual


def say_assumed(assumed: list[str], console: Any) -> None:
    """All in one line."""
    if assumed:
        say(console, f"assumed: {'; '.join(assumed)}", wrap=True)


def check_cost(args: argparse.Namespace) -> None:
    """Refuse tokens, a price, or counts that are none, before the work begins."""
    for name in ("sequence", "batch", "lora_rank"):
        if (value := vars(args).get(name)) is not None:
            typed = "BATCH" if (args.command, name) == ("plan", "batch") else f"--{name}"
            whole_number(typed.replace("_", "-"), value, 1)
    if args.tokens is not None:
        Budget(args.tokens, 1.0, 1, args.price)


def show_budget(args: argparse.Namespace, step: Any, saving: Any, console: Any) -> dict[str, Any]:
    """Days, device-hours and money of --tokens; for JSON too."""
    if args.tokens is None:
        return {}
    budget = step.budget(args.tokens, args.price, saving.stretch)
    lost = format_percent(budget.stretch - 1)
    share = f"{100 * budget.error:.0f} % either way, {lost} for savings and losses in it"
    say(console, f"{budget.line}: {share}", wrap=True)
    names = ("tokens", "days", "device_hours", "price", "cost", "stretch", "error")
    return {"budget": {name: getattr(budget, name) for name in names}}
