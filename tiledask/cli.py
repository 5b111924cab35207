"""The command line: thin calls into the package, tables for people and --json for programs."""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Console

import tiledask as td
from tiledask.errors import ConfigError
from tiledask.plan.units import format_bytes

__all__ = ["main"]

_ERRORS = (ValueError, MemoryError, TimeoutError, RuntimeError, OSError)


def main(arguments: Sequence[str] | None = None) -> int:
    """0 if all went well, 1 if a claim failed or a plan does not fit, 2 for a mistaken request."""
    args = _parser().parse_args(arguments)
    console = Console(stderr=args.json)
    try:
        code, result = args.run(args, console)
    except _ERRORS as error:
        print(f"tiledask {args.command}: {str(error) or type(error).__name__}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"tiledask {args.command}: stopped", file=sys.stderr)
        return 130
    if args.json:
        print(json.dumps(result, indent=1))
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tiledask", description=td.__doc__.splitlines()[0])
    parser.add_argument("--version", action="version", version=td.__version__)
    commands = parser.add_subparsers(dest="command", required=True)
    add = _adder(commands)

    sub = add("tour", _tour, "run the whole story on this machine and write the report")
    sub.add_argument("--folder", default="build/tour", help="where the report goes (%(default)s)")
    _device(sub)

    sub = add("doctor", _doctor, "what this machine has, what will be used, what is missing")

    sub = add("fit", _fit, "does a model fit on a cluster under a layout? why, and what would")
    sub.add_argument("model", help="a shipped name such as gpt-200b, or a config.json")
    sub.add_argument("cluster", help="COUNTxNAME such as 80xA100-40GB, or a JSON file")
    for name in ("dp", "tp", "pp", "microbatch", "microbatches"):
        sub.add_argument(f"--{name}", type=int, default=1, help="(%(default)s)")
    sub.add_argument("--zero", type=int, default=0, choices=range(4), help="(%(default)s)")
    sub.add_argument("--recompute", default="none", help="none, selective or full (%(default)s)")
    sub.add_argument("--recipe", default="mixed-adam-16", help="(%(default)s)")
    sub.add_argument("--sequence", type=int, default=2048, help="tokens (%(default)s)")

    sub = add("partition", _partition, "the best contiguous split of layers over devices")
    sub.add_argument("layers", help="a number of equal layers, or costs such as 1,1,2,4")
    sub.add_argument("stages", type=int)
    sub.add_argument("--speeds", help="one per device, such as 1,1,2,2")
    sub.add_argument("--judge", metavar="ANSWER", help="an answer such as '1-6 | 7-12'")

    sub = add("idle", _idle, "how idle a pipeline schedule leaves its devices")
    sub.add_argument("schedule", help=f"one of {', '.join(td.schedules)}")
    sub.add_argument("stages", type=int)
    sub.add_argument("microbatches", type=int)
    sub.add_argument("--devices", type=int, help="for looped schedules: stages share devices")
    sub.add_argument("--forward", type=float, default=1.0, help="seconds (%(default)s)")
    sub.add_argument("--backward", type=float, default=2.0, help="seconds (%(default)s)")
    sub.add_argument("--latency", type=float, default=0.0, help="seconds (%(default)s)")
    sub.add_argument("--figure", metavar="FILE.png", help="write the Gantt chart")

    sub = add("matmul", _matmul, "run a distributed product and compare it with its prediction")
    sub.add_argument("size", type=int, nargs="?", default=4096, help="n of n x n (%(default)s)")
    sub.add_argument("--mesh", default="2x2", help="workers as rows x columns (%(default)s)")
    sub.add_argument("--kernel", default="blas", help="(%(default)s)")
    sub.add_argument("--tile", type=int)
    _device(sub)
    return parser


def _adder(commands: Any) -> Callable[..., argparse.ArgumentParser]:
    def add(name: str, run: Callable, words: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=words, description=words)
        sub.add_argument("--json", action="store_true", help="print JSON instead of tables")
        sub.set_defaults(run=run)
        return sub

    return add


def _device(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--device", default="auto", choices=("auto", "cuda", "cpu"))


Result = tuple[int, Any]


def _tour(args: argparse.Namespace, console: Console) -> Result:
    from tiledask.lab.tour import tour

    report = tour(args.folder, device=args.device, console=console)
    tables = [table.to_dict() for section in report.sections for table in section.comparisons]
    result = {"ok": report.ok, "held": report.held, "checked": report.checked, "tables": tables}
    return (0 if report.ok else 1), result


def _doctor(args: argparse.Namespace, console: Console) -> Result:
    from tiledask.lab import doctor

    findings = doctor.examine()
    doctor.show(findings, console)
    return 0, json.loads(doctor.to_json(findings))


def _fit(args: argparse.Namespace, console: Console) -> Result:
    layout = td.Layout(
        dp=args.dp, tp=args.tp, pp=args.pp, zero=args.zero, recompute=args.recompute,
        microbatch=args.microbatch, microbatches=args.microbatches,
    )  # fmt: skip
    fit = td.fits(
        td.load_model(args.model), layout, td.load_cluster(args.cluster), args.recipe, args.sequence
    )
    console.print(f"[bold]{fit.verdict}[/bold]: {fit.reason}", soft_wrap=True)
    for stage, peak in fit.memory.ledger.per_place.items():
        classes = fit.memory.ledger.by_tensor(stage).items()
        parts = ", ".join(f"{name} {format_bytes(n)}" for name, n in classes if n)
        console.print(f"  stage {stage}: {format_bytes(peak)}  ({parts})", soft_wrap=True)
    fix = fit.smallest_fix
    if fix:
        console.print(f"[bold]smallest fix[/bold]: {fix}", soft_wrap=True)
    result = {
        "verdict": fit.verdict,
        "reason": fit.reason,
        "shortfall": fit.shortfall,
        "per_stage": list(fit.memory.per_stage),
        "smallest_fix": str(fix) if fix else None,
    }
    return (1 if fit.verdict == "no" else 0), result


def _numbers(text: str, what: str) -> list[float]:
    try:
        return [float(word) for word in text.split(",")]
    except ValueError:
        raise ConfigError(
            f"{what} are numbers between commas, such as 1,1,2; got {text!r}"
        ) from None


def _partition(args: argparse.Namespace, console: Console) -> Result:
    costs = [1.0] * int(args.layers) if args.layers.isdigit() else _numbers(args.layers, "costs")
    speeds = _numbers(args.speeds, "speeds") if args.speeds else None
    cut = td.partition(costs, args.stages, speeds=speeds)
    console.print(f"{cut}: sizes {cut.sizes}, bottleneck {cut.bottleneck:g}", highlight=False)
    result = {"bounds": cut.bounds, "sizes": cut.sizes, "bottleneck": cut.bottleneck}
    if not args.judge:
        return 0, result
    verdict = td.judge(args.judge, devices=args.stages, costs=costs, speeds=speeds)
    console.print(f"{'legal' if verdict else verdict.rule}: {verdict.reason}", highlight=False)
    result |= {"ok": verdict.ok, "rule": verdict.rule, "reason": verdict.reason}
    return (0 if verdict else 1), result


def _idle(args: argparse.Namespace, console: Console) -> Result:
    options = {} if args.devices is None else {"devices": args.devices}
    schedule = td.schedule(args.schedule, args.stages, args.microbatches, **options)
    t = td.simulate(schedule, forward=args.forward, backward=args.backward, latency=args.latency)
    result = {
        "makespan": t.makespan,
        "lower_bound": t.lower_bound,
        "busy": t.busy,
        "idle": t.idle,
        "bubble_fraction": t.bubble_fraction,
        "bubble_overhead": t.bubble_overhead,
        "span_bubble": t.span_bubble,
        "peak_in_flight": t.peak_in_flight,
    }
    console.print(f"{schedule!r}", highlight=False)
    words = {
        "bubble_fraction": "idle / (devices x makespan)",
        "bubble_overhead": "idle / busy",
        "span_bubble": "idle over the longest span of a device",
        "peak_in_flight": "activations kept, per device",
        "lower_bound": f"seconds that no order goes below ({t.bound.why})",
    }
    for name, value in result.items():
        shown = f"{value:.6g}" if isinstance(value, float) else f"{value}"
        console.print(f"  {name:16} {shown:>12}  {words.get(name, 'seconds')}", highlight=False)
    path = t.critical_path
    result |= {"lower_bound_why": t.bound.why, "binds": path.binds}
    console.print(f"  {path!r}", highlight=False)
    if args.figure:
        from tiledask.lab.plots import gantt

        with open(args.figure, "wb") as file:
            file.write(gantt(t, title=f"{schedule!r}").to_png())
    return 0, result


def _matmul(args: argparse.Namespace, console: Console) -> Result:
    from tiledask.lab.product import compare_product

    try:
        mesh = tuple(int(n) for n in args.mesh.split("x"))
    except ValueError:
        mesh = ()
    if len(mesh) != 2:
        raise ConfigError(f"a mesh is rows x columns, such as 2x2; got {args.mesh!r}")
    if args.size < 1:
        raise ConfigError(f"a size is 1 or more, got {args.size}")
    table, explanation = compare_product(args.size, mesh, args.kernel, args.tile, args.device)
    console.print(table)
    console.print(explanation)
    return (0 if table.ok else 1), table.to_dict() | {"explain": explanation.to_dict()}


if __name__ == "__main__":
    sys.exit(main())
