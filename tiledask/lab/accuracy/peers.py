"""Three other planners on the published cases: what each predicts, cannot express, and misses.

    python -m tiledask.lab.accuracy.peers --calculon PATH --llm-analysis PATH --eleutherai PATH

A path is a checkout. Each program runs in a process of its own (peer_run.py), by an interpreter
that has what it imports: calculon wants pandas and psutil, llm-analysis wants fire.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Console
from rich.table import Table

from tiledask.errors import ConfigError, DeadlineError
from tiledask.lab.accuracy import peer_run
from tiledask.lab.accuracy.peer_questions import Question, read
from tiledask.lab.bench.records import record
from tiledask.plan.data import data_file
from tiledask.plan.units import format_bytes, format_percent, format_seconds

__all__ = ["CHECKOUTS", "SETTINGS", "ask", "compare", "error", "main", "summary"]

CHECKOUTS = {
    "calculon": ("github.com/calculon-ai/calculon", "calculon/llm/llm.py"),
    "llm-analysis": ("github.com/cli99/llm-analysis", "llm_analysis/analysis.py"),
    "eleutherai": ("github.com/EleutherAI/cookbook", "calc/calc_transformer_mem.py"),
}
"""Peer -> where it comes from, and a file that its checkout has."""

PUBLISHED = "plan.json", "plan2.json"

SETTINGS = {
    "calculon": [
        "systems a100_80g and h100_80g_nvl8 for time, where it refuses what it thinks does not "
        "fit; a100_80e, the same with unlimited memory, for bytes, as its validation does",
        "modes of its validation: selective with sequence parallelism is attn_only, rs_ag and "
        "seq_par_ag_redo; without sequence parallelism ar; fused_activation false",
        "tensor parallelism on the fast network up to 8 devices, all else on the slow one, as in "
        "its examples",
        "where the published run overlapped its communication, data_par_overlap is on and "
        "tensor_par_overlap is ring",
        "micro-batch and recomputation that a case leaves open: the fastest that it accepts",
        "its one recipe of 16 bytes a parameter, also where the run kept more",
        "a layer's time is a step of one micro-batch without its update, over its layers",
    ],
    "llm-analysis": [
        "takes the efficiency of the arithmetic as input: flops_efficiency 0.5 and "
        "hbm_memory_efficiency 0.9, which its README suggests and its LLaMA example uses; the "
        "measured throughput is not given to it",
        "replicas without ZeRO are rdp_size, with ZeRO dp_size; micro-batch and recomputation "
        "that a case leaves open: the fastest whose peak is within its GPU's memory",
        "flash_attn and softmax_dropout as the run had them; all else by default",
        "state and activation bytes are its bytes per layer times the layers, as the published "
        "numbers leave the embedding out; peak is estimated_peak_memory_per_gpu",
        "its default recipe of 18 bytes a parameter, also where the run kept less or more",
        "a layer's time is what twice the layers take longer; GPU hours are its LLaMA example's",
    ],
    "eleutherai": [
        "the numbers that its scripts print, two decimals",
        "partition-activations wherever tensor parallelism is used, as in all its examples; "
        "bytes-per-grad-ele as in the run; misc-mem-gib 0, its default",
        "parameters from calc_transformer_params.py, or from calc_transformer_mem.py where the "
        "expansion is no integer; sequence-length its default where positions are not learned",
        "num-mlp-linears 3 for gated MLPs, kv-size-ratio for grouped queries",
    ],
    "all": [
        "heads that the BLOOM log does not state are 96; interleaving that a case does not state "
        "is none; SC21 Table 2 and MT-NLG recompute everything",
        "torchtitan's operator-level recomputation is asked for as selective, the nearest",
        "published seconds of Megatron-Core and Llama 3 are model FLOP (all scores counted) over "
        "devices and published FLOP/s; of torchtitan tokens over devices and tokens/s",
        "fits is the predicted peak against 80 GiB of an A100-80GB",
    ],
}
"""How each program was used; goes into the record."""


def ask(
    name: str,
    checkout: str,
    cases: Sequence[Question],
    python: str = sys.executable,
    limit: float = 300.0,
) -> list[dict[str, Any]]:
    """A row per question: the record's, with what ``name`` says.

    Raises ConfigError if the checkout or its interpreter is not what it should be, DeadlineError
    if the program takes longer than ``limit`` seconds.
    """
    home, within = CHECKOUTS[name]
    folder = Path(checkout).resolve()
    if not (folder / within).is_file():
        raise ConfigError(
            f"{folder} is no checkout of {name}: it has no {within}; give one of {home} "
            f"with --{name} PATH"
        )
    command = [python, "-I", "-B", peer_run.__file__, name, str(folder)]
    questions = json.dumps([asdict(case) for case in cases])
    try:
        done = subprocess.run(
            command, input=questions, capture_output=True, text=True, timeout=limit, check=False
        )
    except subprocess.TimeoutExpired:
        raise DeadlineError(
            f"{name} answered {len(cases)} questions not within {limit:g} s; allow more with "
            f"--limit SECONDS"
        ) from None
    except OSError as error:
        raise ConfigError(
            f"{python} does not run ({error.strerror}); give an interpreter with --python PATH"
        ) from None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise ConfigError(
            f"{name} broke under {python}: {last}; if it lacks a module, give an interpreter "
            f"that has it with --python PATH"
        )
    answers = json.loads(done.stdout.splitlines()[-1])
    return [
        {
            "case": case.case,
            "source": case.source,
            "quantity": case.quantity,
            "key": case.key,
            "peer": name,
            "published": case.published,
            **answer,
        }
        for case, answer in zip(cases, answers, strict=True)
    ]


def error(row: dict[str, Any]) -> float | None:
    """Relative error of a row; a wrong verdict is 1, a regret is its own error; None: no value.

    >>> error({"quantity": "peak bytes", "value": 90.0, "published": 100.0})
    -0.1
    >>> error({"quantity": "fits", "value": 1.0, "published": 0.0})
    1.0
    """
    value, published = row["value"], row["published"]
    if value is None:
        return None
    if row["quantity"] in ("fits", "ranking regret"):
        return float(value - published)
    return round(value / published - 1, 12)


def summary(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row per quantity, source and peer: numbers asked for and expressed, mean size of the
    error, worst error with its sign, and its case."""
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["quantity"], row["source"], row["peer"]), []).append(row)
    found = []
    for (quantity, source, peer), here in sorted(groups.items(), key=lambda group: group[0][:2]):
        said = [(abs(e), e, row["case"]) for row in here if (e := error(row)) is not None]
        _, worst, case = max(said, default=(None, None, ""))
        mean = fmean(size for size, *_ in said) if said else None
        found.append(
            {
                "quantity": quantity,
                "source": source,
                "peer": peer,
                "asked": len(here),
                "expressed": len(said),
                "mean error": mean,
                "worst error": worst,
                "worst case": case,
            }
        )
    return found


# what people look at --------------------------------------------------------------------


def compare(rows: Sequence[dict[str, Any]]) -> list[Table]:
    """Per quantity a table with a row per published number and a column per peer, and a summary."""
    peers = list(dict.fromkeys(row["peer"] for row in rows))
    tables = []
    for quantity in dict.fromkeys(row["quantity"] for row in rows):
        here = [row for row in rows if row["quantity"] == quantity]
        table = Table(title=quantity)
        for head in ("case", "published", *peers):
            side = "left" if head == "case" else "right"
            table.add_column(head, justify=side, overflow="fold")
        for case, key in dict.fromkeys((row["case"], row["key"]) for row in here):
            said = {r["peer"]: r for r in here if (r["case"], r["key"]) == (case, key)}
            first = next(iter(said.values()))
            several = sum(r["case"] == case and r["peer"] == first["peer"] for r in here) > 1
            name = f"{case}\n[dim]{key}[/]" if several else case
            table.add_row(
                name, shown(quantity, first["published"]), *(cell(said.get(p)) for p in peers)
            )
        tables.append(table)
    return [*tables, summary_table(summary(rows))]


def summary_table(groups: Sequence[dict[str, Any]]) -> Table:
    """A row per quantity and source, a column per peer."""
    peers = list(dict.fromkeys(group["peer"] for group in groups))
    table = Table(title="numbers expressed of those asked for; mean and worst error")
    for head in ("quantity", "source", *peers):
        table.add_column(head, justify="right" if head in peers else "left")
    before = ""
    for quantity, source in dict.fromkeys((g["quantity"], g["source"]) for g in groups):
        if before not in ("", quantity):
            table.add_section()
        here = {g["peer"]: g for g in groups if (g["quantity"], g["source"]) == (quantity, source)}
        name = "" if quantity == before else quantity
        table.add_row(name, source, *(judged(here[peer]) if peer in here else "" for peer in peers))
        before = quantity
    return table


def judged(group: dict[str, Any]) -> str:
    """
    >>> judged({"quantity": "peak bytes", "asked": 9, "expressed": 4, "mean error": 0.1,
    ...         "worst error": -0.254})
    '4 of 9: 10.0 %, -25.4 %'
    """
    many, mean = group["expressed"], group["mean error"]
    if not many:
        return f"[dim]0 of {group['asked']}[/]"
    if group["quantity"] == "fits":
        return f"{many - round(mean * many)} of {many} right"
    worst = format_percent(group["worst error"], "+")
    return f"{many} of {group['asked']}: {format_percent(mean)}, {worst}"


def cell(row: dict[str, Any] | None) -> str:
    """A value with its error, or why there is none."""
    if row is None or row["value"] is None:
        return f"[dim]{row['why not']}[/]" if row else ""
    text = shown(row["quantity"], row["value"])
    off = error(row)
    if row["quantity"] == "fits":
        text += " ✗" if off else " ✓"
    elif row["quantity"] != "ranking regret":
        text += f" ({format_percent(off, '+')})"
    return text + (f"\n[dim]{row['note']}[/]" if row["note"] else "")


def shown(quantity: str, number: float) -> str:
    """
    >>> shown("parameters", 124439808), shown("iteration seconds", 1.42), shown("fits", 0.0)
    ('124,439,808', '1.42 s', 'no')
    """
    if quantity.endswith("bytes"):
        return format_bytes(round(number))
    if quantity.endswith("seconds"):
        return format_seconds(number)
    if quantity == "fits":
        return "yes" if number else "no"
    if quantity == "ranking regret":
        return format_percent(number)
    return f"{number:,.0f}"


def commit(checkout: str) -> str:
    """The commit of a checkout, as git names it; "unknown" if git does not know."""
    command = ["git", "-C", checkout, "rev-parse", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return done.stdout.strip() if done.returncode == 0 else "unknown"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the comparison; with --record, keep it as JSON too."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, (home, _) in CHECKOUTS.items():
        parser.add_argument(f"--{name}", metavar="PATH", help=f"a checkout of {home}")
    parser.add_argument(
        "--python", metavar="PATH", default=sys.executable, help="an interpreter for the peers"
    )
    parser.add_argument("--published", metavar="FILE.json", help="cases (those shipped)")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds for each peer")
    parser.add_argument("--record", metavar="FILE.json", help="also write the numbers there")
    args = parser.parse_args(arguments)
    given = {name: getattr(args, name.replace("-", "_")) for name in CHECKOUTS}
    given = {name: path for name, path in given.items() if path}
    if not given:
        parser.error(
            "give a checkout of one peer or more: " + ", ".join(f"--{n}" for n in CHECKOUTS)
        )
    console = Console()
    files = [args.published] if args.published else [data_file("published", f) for f in PUBLISHED]
    cases = [case for file in files for case in read(file)]
    rows = []
    for name, checkout in given.items():
        try:
            rows += ask(name, checkout, cases, args.python, args.limit)
        except (ConfigError, DeadlineError) as reason:
            console.print(f"[bold red]Stopped.[/] {reason}", highlight=False)
            return 1
    for table in compare(rows):
        console.print(table)
    if args.record:
        facts = {
            "peers": {name: commit(checkout) for name, checkout in given.items()},
            "settings": {name: SETTINGS[name] for name in (*given, "all")},
            "summary": summary(rows),
            "rows": rows,
        }
        record(Path(args.record), "tiledask.lab.accuracy.peers", facts)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
