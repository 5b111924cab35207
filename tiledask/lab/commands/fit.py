"""`tiledask fit`: does a layout fit, how fast is it, what does it move; or whichever is best."""

import argparse
import shlex
from collections.abc import Callable
from dataclasses import fields, replace
from math import gcd
from pathlib import Path
from typing import Any

import tiledask as td
from tiledask.errors import ConfigError
from tiledask.lab.commands.one_layout import FitRequest, one_layout
from tiledask.lab.commands.options import (
    CLUSTER,
    MODEL,
    check_cost,
    cost_options,
    recipe_of,
    run_options,
    sequence_of,
    shape_of,
    tensor_bytes,
    usual_batch,
    whole,
)

__all__ = ["add", "run"]

Result = tuple[int, Any]

EXAMPLES = """examples:
  tiledask fit 200B 80x40GB  # the best layouts of 80 cards
  tiledask fit llama-3.1-8b 8xH100 --zero 1  # one layout: dp 8, ZeRO-1
  tiledask fit 70B 64xH100 --tp 8 --pp 4 --batch 512
  tiledask fit 8B 1x24GB --lora-rank 16  # adapters alone
  tiledask fit 26GB 4x24GB  # one weight, in every split

verdicts:
  fits   with all of the overhead, and as far off as half of the published runs
  tight  what is counted fits, but not with all of that
  no     it does not fit, or the cluster has too few devices"""

AXES = (
    ("dp", "data-parallel copies (what the other three leave of the cluster)"),
    ("tp", "tensor-parallel slices of each layer (1)"),
    ("pp", "pipeline stages (1)"),
    ("cp", "context-parallel pieces of each sequence (1)"),
    ("ep", "devices that experts are dealt out to (1)"),
    ("expert-tp", "slices of each expert (those of --tp)"),
    ("microbatch", "sequences in a micro-batch (1)"),
    ("microbatches", "of one copy in a step (1, or what --batch asks for)"),
    ("interleave", "chunks of layers on a stage (1)"),
)


def add(adder: Callable[..., argparse.ArgumentParser]) -> None:
    """The command and its options."""
    words = "does a model fit on a cluster, how fast, and if not, what would?"
    sub = adder("fit", run, words, EXAMPLES)
    words = f"{MODEL}; 26GB, the bytes of one weight"
    sub.add_argument("model", nargs="?", metavar="MODEL", help=words)
    sub.add_argument("cluster", metavar="CLUSTER", help=CLUSTER)
    layout = sub.add_argument_group("the layout (without one: the best layouts of the cluster)")
    for name, words in AXES:
        layout.add_argument(f"--{name}", type=whole, metavar="N", help=words)
    words = "what copies share out: 1 optimizer states, 2 gradients too, 3 weights too (0)"
    layout.add_argument("--zero", type=whole, choices=range(4), help=words)
    words = "activations computed again: none, selective or full (none)"
    layout.add_argument("--recompute", metavar="WHICH", help=words)
    words = "1f1b, or another of `tiledask list schedules` (1f1b)"
    layout.add_argument("--schedule", metavar="NAME", help=words)
    words = "layers of each stage, such as 5,6,6,5; items: embedding and head are one each (even)"
    layout.add_argument("--partition", metavar="LAYERS", help=words)
    for name, words in (
        ("sequence-parallel", "with --tp: what it leaves whole is cut along the sequence"),
        ("flash-attention", "no s x s scores are kept"),
    ):
        layout.add_argument(f"--{name}", action="store_true", default=None, help=words)
    group = run_options(sub)
    words = (
        "sequences of a step, over all devices (of the best layouts 8 a device, at most 4M "
        "tokens; of one layout a micro-batch a copy)"
    )
    group.add_argument("--batch", type=whole, metavar="N", help=words)
    words = "optimizer states in the host's memory, or on its disks"
    group.add_argument("--offload", choices=("cpu", "nvme"), help=words)
    words = "to serve, with a recipe of weights alone: tokens whose keys and values a copy keeps"
    group.add_argument("--cached", type=whole, default=0, metavar="TOKENS", help=words)
    read = sub.add_argument_group("read from another program (options above go before)")
    for name, metavar, words in (
        ("megatron", "FLAGS", "model, layout and recipe from Megatron-LM's flags, or their file"),
        ("torchtitan", "FILE", "from a torchtitan TOML"),
        ("deepspeed", "FILE", "layout and recipe from a DeepSpeed JSON"),
    ):
        read.add_argument(f"--{name}", metavar=metavar, help=words)
    out = cost_options(sub)
    out.add_argument("--critique", action="store_true", help="what is wrong, what is better")
    out.add_argument("--figure", metavar="FILE", help="memory of each stage, as a picture")


def run(args: argparse.Namespace, console: Any) -> Result:
    """The answer by what was named: a weight, a model, a model in a layout."""
    from tiledask.lab.commands import best, weight

    check_cost(args)
    if size := tensor_bytes(args.model):
        named = {"command", "run", "json", "model", "cluster", "explain"}
        given = [name for name, value in vars(args).items() if value and name not in named]
        if given:
            option = given[0].replace("_", "-")
            raise ConfigError(f"of a weight of {args.model} every split is shown; no --{option}")
        return weight.run(size, td.load_cluster(args.cluster), console)
    asked = _asked(args)
    if asked.layout is None:
        return best.run(args, asked, console)
    return one_layout(args, asked, console)


def _typed(args: argparse.Namespace) -> dict[str, Any]:
    """The fields of a layout that were typed."""
    given = vars(args)
    return {f.name: given[f.name] for f in fields(td.Layout) if given.get(f.name) is not None}


def _asked(args: argparse.Namespace) -> FitRequest:
    """All of it as typed or imported; what is typed goes before."""
    typed = _typed(args)
    configs = [name for name in ("megatron", "torchtitan", "deepspeed") if vars(args)[name]]
    if len(configs) > 1:
        raise ConfigError(f"one configuration at a time; got --{' and --'.join(configs)}")
    if args.model is None and not configs:
        raise ConfigError("a model and a cluster are named, such as: fit 200B 80x40GB")
    cluster = td.load_cluster(args.cluster)
    if configs:
        asked = _imported(args, configs[0], typed, cluster)
    else:
        model = td.load_model(args.model)
        recipe, sequence = recipe_of(args, cluster.device), sequence_of(args, model)
        asked = FitRequest(
            model, cluster, recipe, sequence, assumed=shape_of(args, model, cluster, recipe)
        )
        if typed:
            model.check_tp(typed.get("tp", 1), cluster.devices)
            asked.layout = _filled(args, typed, asked)
            each, usual = asked.layout.sequences, usual_batch(cluster.devices, sequence)
            if args.batch is None and args.microbatches is None and each < usual:
                asked.way_out = (
                    f"; one micro-batch a copy, as no --batch was given; --batch "
                    f"{-(-usual // each) * each} is what a search takes"
                )
    if args.offload:
        asked.recipe = td.offload(asked.recipe, to=args.offload)
    return asked


def _filled(args: argparse.Namespace, typed: dict[str, Any], asked: FitRequest) -> Any:
    """The layout that was typed, with copies that fill the cluster and the batch's micro-batches,
    where nobody said how many."""
    slices = typed.get("tp", 1) * typed.get("pp", 1) * typed.get("cp", 1)
    if "dp" not in typed:
        split = typed.get("ep", 1) * (typed.get("expert_tp") or typed.get("tp", 1))
        own = typed.get("tp", 1) * typed.get("cp", 1)
        step = split // gcd(split, own) if min(split, own) > 0 else 1
        fills = asked.cluster.devices // max(1, slices)
        typed = typed | {"dp": max(step, fills // step * step, 1)}
        if typed["dp"] > 1:
            asked.assumed.append(f"dp {typed['dp']} fills the cluster")
    count = _microbatches(args, typed["dp"], typed.get("microbatch", 1))
    return td.Layout(**typed, **count)


def _microbatches(args: argparse.Namespace, dp: int, microbatch: int) -> dict[str, int]:
    """The micro-batches of a copy that --batch asks for; nothing without it."""
    if args.batch is None:
        return {}
    if args.microbatches is not None:
        raise ConfigError("--batch says how many micro-batches a copy has; no --microbatches")
    each = max(1, dp * microbatch)
    if args.batch < 1 or args.batch % each:
        near = max(1, round(args.batch / each)) * each
        raise ConfigError(
            f"--batch {args.batch} is no multiple of the {each} sequences that dp {dp} x "
            f"microbatch {microbatch} take at once; {near} is"
        )
    return {"microbatches": args.batch // each}


def _imported(
    args: argparse.Namespace, name: str, typed: dict[str, Any], cluster: Any
) -> FitRequest:
    """What another program's configuration says; what is typed besides goes before."""
    given = vars(args)[name]
    given = given if name == "megatron" else Path(given)
    found = td.import_config(name, given, model=args.model, devices=cluster.devices)
    layout = replace(found.layout, **typed)
    layout = replace(layout, **_microbatches(args, layout.dp, layout.microbatch))
    chosen = args.recipe is not None or args.lora_rank is not None
    recipe = recipe_of(args, cluster.device) if chosen else td.load_recipe(found.recipe)
    assumed = [f"{found.model!r}, {shlex.join(layout.options)}, read from {name}"]
    sequence = found.sequence if args.sequence is None else args.sequence
    return FitRequest(found.model, cluster, recipe, sequence, layout, assumed, found)
