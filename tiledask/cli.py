"""The command line: thin calls into the package, tables for people and --json for programs."""

import argparse
import json
import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any, NoReturn

from rich.console import Console

import tiledask as td
from tiledask.errors import ConfigError, short
from tiledask.extras import needs
from tiledask.lab.figure_file import check_figure, save_figure
from tiledask.lab.table import Grid, say
from tiledask.plan.inputs.run import check_timed, check_trains
from tiledask.plan.products.product import algorithms
from tiledask.plan.splitting.exact import count
from tiledask.plan.splitting.partition import layer_costs
from tiledask.plan.units import format_percent, parse_bytes, parse_count
from tiledask.plan.whole import whole_rule

__all__ = ["main"]

EXPORTS = ("megatron", "torchtitan", "deepspeed", "nemo", "nanotron")
"""What td.export_config writes, without loading it."""
ASK_EXAMPLES = """\
examples:
  tiledask ask
  tiledask ask 34 --set layers=30 --no-run
  tiledask ask 24 layers on 4 devices --no-run
  tiledask ask "does 200B fit on 40GB GPUs" --no-run
  tiledask ask 12 --no-run --explain
"""
_Add = Callable[..., argparse.ArgumentParser]
_ERRORS = (ValueError, MemoryError, TimeoutError, RuntimeError, OSError)


def main(arguments: Sequence[str] | None = None) -> int:
    """0 if all went well, 1 if a claim failed or a plan does not fit, 2 for a mistaken request."""
    args, unknown = _parser().parse_known_args(arguments)
    if unknown:
        said = f"no argument {short(unknown[0])}; tiledask {args.command} --help has them all"
        print(f"tiledask {args.command}: {said}", file=sys.stderr)
        return 2
    console = Console(stderr=args.json)
    try:
        for path in filter(None, (vars(args).get("figure"), vars(args).get("map"))):
            check_figure(path)  # all of this before the work begins
        if vars(args).get("tokens") is not None:
            args.tokens = parse_count(args.tokens)
        elif vars(args).get("price") is not None:
            raise ConfigError("--price is for --tokens, such as --tokens 15T --price 2.5")
        code, result = args.run(args, console)
    except _ERRORS as error:
        words = ConfigError(str(error) or type(error).__name__)  # others' are made short, too
        print(f"tiledask {args.command}: {words}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        print(needs(f"tiledask {args.command}:", error), file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"tiledask {args.command}: stopped", file=sys.stderr)
        return 130
    if args.json:
        try:
            print(json.dumps(result, indent=1), flush=True)
        except BrokenPipeError:  # such as: tiledask ... --json | head
            sys.stdout = None
    return code


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="tiledask", description=td.__doc__.splitlines()[0])
    parser.add_argument("--version", action="version", version=td.__version__)
    commands = parser.add_subparsers(dest="command", required=True)
    add = _adder(commands)
    for room in (_of_this_machine, _of_planning, _of_the_course, _of_running):
        room(add)
    return parser


def _of_this_machine(add: _Add) -> None:
    for kind, words in (
        ("models", "the models that are shipped, and their sizes"),
        ("hardware", "the devices that are shipped: memory, speed, links"),
        ("recipes", "the training recipes: bytes of a parameter"),
        ("schedules", "the pipeline schedules: idle time, micro-batches kept"),
    ):
        sub = add(kind, _list, words)
        sub.add_argument(
            "part", nargs="?", default="", help="of a name, such as llama; all if none"
        )

    sub = add(
        "completion", _completion, "what a shell completes words by: source <(tiledask completion)"
    )
    sub.add_argument("shell", nargs="?", choices=list(_COMPLETION), default="bash")

    sub = add("tour", _tour, "run the whole story on this machine and write the report")
    sub.add_argument("--folder", default="build/tour", help="where the report goes (%(default)s)")
    _device(sub)

    sub = add("doctor", _doctor, "what this machine has, what will be used, what is missing")

    sub = add("notebooks", _notebooks, "your own copies of the walkthroughs; what is there stays")
    sub.add_argument("folder", help="where they go, such as learn")
    sub.add_argument(
        "--lab",
        nargs=argparse.REMAINDER,
        metavar="ARGUMENT",
        help="then open them in JupyterLab, with what follows as arguments of its own",
    )
    sub.add_argument(
        "--nbgrader", action="store_true", help="for a class: tests in the place of solutions"
    )

    sub = add("sheet", _sheet, "puzzles, or levels of the idle-time ladder, as a page to print")
    sub.add_argument("names", nargs="+", metavar="NAME", help="a puzzle, idle-3, or idle for all")
    sub.add_argument("--seed", type=int, default=0, help="draws the numbers of the ladder (0)")
    sub.add_argument("--answers", action="store_true", help="with answers, for whoever marks it")
    sub.add_argument("--to", default="sheet.html", metavar="FILE", help="the page (%(default)s)")

    sub = add("grade", _grade, "what the answers in a folder of learners' notebooks are worth")
    sub.add_argument("folder", help="notebooks, each learner's in a folder of his own")
    sub.add_argument("--csv", metavar="FILE", help="the table as a file too")
    sub.add_argument(
        "--run-code", action="store_true", help="run answers that are functions: on a spare machine"
    )


def _of_planning(add: _Add) -> None:
    sub = add("fit", _fit, "does a model fit on a cluster under a layout? why, and what would")
    _of_models(sub, optional=True)
    for name, metavar, words in (
        ("megatron", "FLAGS", "model, layout and recipe from Megatron-LM's flags, or their file"),
        ("torchtitan", "FILE", "from a torchtitan TOML"),
        ("deepspeed", "FILE", "layout and recipe from a DeepSpeed JSON"),
    ):
        sub.add_argument(f"--{name}", metavar=metavar, help=words)
    for name, words in (
        ("dp", "data-parallel copies"),
        ("tp", "tensor-parallel slices of each layer"),
        ("pp", "pipeline stages"),
        ("cp", "context-parallel pieces of each sequence"),
        ("ep", "devices that experts are dealt out to"),
        ("microbatch", "sequences in a micro-batch"),
        ("microbatches", "of one copy in a step"),
        ("interleave", "chunks of layers a stage"),
    ):
        sub.add_argument(f"--{name}", type=_whole, default=1, help=f"{words} (%(default)s)")
    sub.add_argument("--expert-tp", type=_whole, default=0, help="slices of each expert; 0: tp")
    sub.add_argument("--zero", type=_whole, default=0, choices=range(4), help="(%(default)s)")
    sub.add_argument(
        "--unshard",
        type=_unshard,
        metavar="KEEP",
        help="with --zero 3: gathered for an action, phase or step, or of the next stages: 1, 2",
    )
    sub.add_argument("--recompute", default="none", help="none, selective or full (%(default)s)")
    sub.add_argument("--schedule", default="1f1b", help="1f1b, gpipe, zb-h1, ... (%(default)s)")
    sub.add_argument("--partition", help="layers of each stage, such as 'E+5, 6x10, 5+E'")
    sub.add_argument("--sequence-parallel", action="store_true", help="with --tp")
    sub.add_argument("--flash-attention", action="store_true", help="keeps no scores")
    sub.add_argument(
        "--cached", type=_whole, default=0, help="served: tokens whose keys and values a copy keeps"
    )
    sub.add_argument("--offload", choices=("cpu", "nvme"), help="where optimizer states lie")
    sub.add_argument("--critique", action="store_true", help="what is wrong, what is better")
    _exports(sub)
    sub.add_argument("--figure", metavar="FILE", help="memory of each stage, as a picture")
    sub.add_argument(
        "--snapshot", metavar="FILE", help="torch's memory snapshot: what is larger than predicted"
    )
    sub.add_argument("--stage", type=_whole, default=0, help="of the snapshot (%(default)s)")
    sub.add_argument(
        "--run",
        dest="execute",
        action="store_true",
        help="allocate the states on workers here, at 1:1000",
    )

    sub = add("plan", _plan, "every layout of a cluster: which fit, which is fastest, what binds")
    _of_models(sub)
    sub.add_argument("batch", type=_whole, help="sequences of a step, over all devices")
    sub.add_argument("--devices", help="numbers of devices to try, such as 64,128 (all)")
    sub.add_argument("--first", type=_few, default=8, help="plans to show, to 100 (%(default)s)")
    sub.add_argument("--no-sensitivity", action="store_true", help="leave out what binds")
    _exports(sub)
    sub.add_argument("--figure", metavar="FILE", help="time against memory, as a picture")
    sub.add_argument("--map", metavar="FILE", help="what fits by tp and pp, as a picture")


def _of_the_course(add: _Add) -> None:
    sub = add("ask", _ask, "a question of the course, worked out and run")
    sub.formatter_class = argparse.RawDescriptionHelpFormatter
    sub.epilog = ASK_EXAMPLES
    sub.add_argument("question", nargs="*", help="its number, or words that it has; none lists all")
    sub.add_argument(
        "--set",
        action="extend",
        nargs="+",
        default=[],
        metavar="INPUT=VALUE",
        help="change inputs, such as layers=12 devices=3",
    )
    sub.add_argument("--no-run", action="store_true", help="arithmetic and simulation only")
    sub.add_argument("--explain", action="store_true", help="what the inputs are, and more working")
    sub.add_argument("--figure", metavar="FILE", help="the answer as a picture, where it has one")

    words = "the best contiguous cut of layers over devices, or what an answer is worth"
    sub = add("partition", _partition, words)
    _examples(
        sub,
        "partition 24 4",
        "partition 2,1,1,1,1,4 3 --speeds 1,1,2",
        "partition 12 3 --judge '1,4,7,10 | 2,5,8,11 | 3,6,9,12'",
    )
    sub.add_argument("layers", help="a number of equal layers, or costs such as 1,1,2,4")
    sub.add_argument("devices", type=_whole, nargs="?", help="how many there are")
    sub.add_argument("--devices", dest="on", type=_whole, metavar="N", help="the same")
    sub.add_argument("--speeds", help="one per device, such as 1,1,2,2")
    sub.add_argument("--chunks", type=_whole, default=1, help="per device, in turns (%(default)s)")
    sub.add_argument("--memory", help="bytes of each layer, such as 1GB or 4GB,1GB,1GB,4GB")
    sub.add_argument("--capacity", help="bytes of each device, such as 8GB or 16GB,8GB")
    sub.add_argument("--communication", help="time to send across a cut; one, or one per place")
    sub.add_argument(
        "--judge", metavar="ANSWER", help="the layers of each device, such as '1-6 | 7-12'"
    )
    sub.add_argument("--solution", action="store_true", help="with --judge: the best cut as well")

    sub = add("puzzle", _puzzle, "puzzles from easy to hard: show one, judge answers, draw them")
    sub.add_argument("puzzle", nargs="?", help="a level, a name or a JSON file; none lists all")
    sub.add_argument(
        "--answer",
        action="extend",
        nargs="+",
        default=[],
        metavar="ANSWER",
        help="one or more answers, or files with one each; - reads standard input",
    )
    sub.add_argument("--hint", action="store_true", help="one more hint than before")
    sub.add_argument("--seed", type=_whole, help="draws the numbers of idle-1 to idle-12 (0)")
    sub.add_argument("--figure", metavar="FILE", help="draw the task, or the last answer")


def _of_running(add: _Add) -> None:
    _of_idle(add)
    sub = add("matmul", _matmul, "a product over workers: predicted, run and compared")
    _examples(
        sub,
        "matmul 1024",
        "matmul 2048 1024 4096 --dtype float64 --algorithm cannon --workers 4",
        "matmul 65536 --workers 64 --algorithm 2.5d --no-run",
    )
    words = "of n x n (4096), or M N K: A is M x K and B is K x N"
    sub.add_argument("sizes", metavar="SIZE", type=_whole, nargs="*", help=words)
    dtypes = ("float16", "bfloat16", "float32", "float64")
    sub.add_argument("--dtype", default="float32", choices=dtypes, help="(%(default)s)")
    words = f"{', '.join(algorithms)} (%(default)s)"
    sub.add_argument("--algorithm", default="summa", metavar="NAME", help=words)
    sub.add_argument("--workers", type=_whole, metavar="N", help="in the squarest mesh (4)")
    sub.add_argument("--mesh", metavar="PxQ", help="workers as rows x columns, such as 2x2")
    words = "prediction alone, of any size, without workers"
    sub.add_argument("--no-run", action="store_true", help=words)
    sub.add_argument("--kernel", default="blas", help="(%(default)s)")
    sub.add_argument("--tile", type=_whole, metavar="N", help="of the kernel")
    _device(sub)


def _of_idle(add: _Add) -> None:
    sub = add("idle", _idle, "how idle a pipeline schedule leaves its devices")
    _examples(
        sub,
        "idle layer-wise 4",
        "idle 1f1b 4 8 --latency 0.25 --transfers paired",
        "idle interleaved 4 8 --chunks 2 --explain",
        "idle --utilisation 0.9 --devices 4",
        "idle --order order.txt --forward 1 --backward 2",
    )
    names = ", ".join(td.schedules).replace("naive", "naive (or layer-wise)")
    sub.add_argument("schedule", metavar="SCHEDULE", nargs="?", help=names)
    whole: dict[str, Any] = {"type": _whole, "nargs": "?"}
    sub.add_argument("devices", metavar="DEVICES", help="how many, for every schedule", **whole)
    sub.add_argument("microbatches", metavar="MICROBATCHES", help="of a step (naive: 1)", **whole)
    for name in ("devices", "microbatches"):
        words = f"the same as {name.upper()}"
        sub.add_argument(f"--{name}", dest=f"{name}_option", metavar="N", type=_whole, help=words)
    words = "stages on each device, of interleaved, looped-bfs, interleaved-zb, wave (2)"
    sub.add_argument("--chunks", metavar="V", type=_whole, help=words)
    words = "finds the fewest micro-batches that reach U, such as 0.9 or 90%% (of 1f1b)"
    sub.add_argument("--utilisation", "--utilization", metavar="U", help=words)
    words = (
        "in place of a schedule: is this order legal, and how idle? A line for each device, such "
        "as 0F0 0F1 0B0 0B1 (stage, F B I or W, micro-batch), or JSON rows of them"
    )
    sub.add_argument("--order", metavar="FILE", help=words)
    words = "causes of idle time, the bound, the critical path, what transfers mean"
    sub.add_argument("--explain", action="store_true", help=words)
    times = sub.add_argument_group("times", "seconds: one number, or one per stage: 1,1,2,1")
    times.add_argument("--forward", default="1", metavar="S", help="(%(default)s)")
    words = "half is for I, half for W, where it is split (%(default)s)"
    times.add_argument("--backward", default="2", metavar="S", help=words)
    words = "of a forward and a backward at once, as in dualpipe (their sum)"
    times.add_argument("--overlapped", metavar="S", help=words)
    words = "from stage to stage: one number, or one per boundary (%(default)s)"
    times.add_argument("--latency", default="0", metavar="S", help=words)
    words = (
        "overlapped (devices compute meanwhile), blocking (the sender waits until the block is in "
        "a buffer), rendezvous (both ends wait for each other), paired (rendezvous, sends and "
        "receives between two actions posted at once)"
    )
    times.add_argument("--transfers", default="overlapped", metavar="HOW", help=words)
    files = sub.add_argument_group("files")
    files.add_argument("--figure", metavar="FILE", help="write the Gantt chart")
    words = "write a trace for Perfetto, .json or .json.gz"
    files.add_argument("--trace", metavar="FILE", help=words)
    measured = sub.add_argument_group(
        "a measured run", "--diagnose in place of a schedule; the other three go with it"
    )
    words = (
        "why it idles: a CSV of spans or of polled utilisation, a Chrome trace, or a folder with "
        "one of each rank"
    )
    measured.add_argument("--diagnose", metavar="TRACE", help=words)
    measured.add_argument("--unit", help="of the trace's times: s, ms, us or ns")
    measured.add_argument("--layers", metavar="COSTS", help="a number, or costs: 1,1,2,4")
    measured.add_argument("--memory-limit", type=float, metavar="K", help="micro-batches kept")


def _examples(sub: argparse.ArgumentParser, *typed: str) -> None:
    sub.formatter_class = argparse.RawDescriptionHelpFormatter
    sub.epilog = "\n".join(["examples:", *(f"  tiledask {each}" for each in typed)])


class _Parser(argparse.ArgumentParser):
    """One whose complaints stay short, whatever was typed; -2T is a number, and no option."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._negative_number_matcher = re.compile(r"-\.?[0-9].*")

    def error(self, message: str) -> NoReturn:
        message = message if len(message) < 500 else f"{message[:250]} ... {message[-200:]}"
        self.exit(2, f"{self.prog}: {message}; {self.prog} --help says more\n")


def _whole(text: str) -> int:
    if not re.fullmatch(r"[+-]?[0-9]{1,30}", text):
        raise argparse.ArgumentTypeError(f"must be {whole_rule()}, got {short(text)}")
    return int(text)


def _unshard(text: str) -> str | int:
    return int(text) if re.fullmatch(r"[0-9]{1,9}", text) else text


def _few(text: str) -> int:
    if not 1 <= _whole(text) <= 100:
        raise argparse.ArgumentTypeError(f"must be {whole_rule(1, 100)}, got {short(text)}")
    return int(text)


def _of_models(sub: argparse.ArgumentParser, optional: bool = False) -> None:
    words = "a shipped name such as gpt-200b, a config.json, a hub's name, or 70B"
    if optional:
        sub.add_argument("model", nargs="?", help=f"{words}; what is imported may say it")
    else:
        sub.add_argument("model", help=words)
    sub.add_argument("cluster", help="COUNTxNAME such as 80xA100-40GB, or a JSON file")
    sub.add_argument("--recipe", help="a name or a JSON file (the framework's, or mixed-adam-16)")
    sub.add_argument(
        "--sequence", type=_whole, help="tokens (2048, or as many as the model has positions)"
    )
    sub.add_argument("--framework", help="whose kernels and overlaps, such as megatron-2025")
    sub.add_argument("--calibration", metavar="FILE", help="made by td.calibrate, in its place")
    sub.add_argument("--tokens", metavar="N", help="days and device-hours for N, such as 15T")
    for name, unit, words in (
        ("--price", "AMOUNT", "with --tokens: of a device for an hour, such as 2.5"),
        ("--mtbf", "HOURS", "between two losses of a device (Llama 3's: 51000)"),
        ("--storage", "GB", "that a device saves in a second (Llama 3's: 0.122)"),
        ("--restart", "SECONDS", "from a loss until steps go on (600)"),
    ):
        sub.add_argument(name, type=float, metavar=unit, help=words)


def _exports(sub: argparse.ArgumentParser) -> None:
    words = f"the layout (of plan, the first one) for {', '.join(EXPORTS)}"
    sub.add_argument("--export", metavar="FRAMEWORK", choices=EXPORTS, help=words)


def _budget(args: argparse.Namespace, step: Any, saving: Any) -> Any:
    """What --tokens ask, a Budget; None without."""
    if args.tokens is None:
        return None
    return step.budget(args.tokens, args.price, saving.stretch)


def _show_budget(budget: Any, console: Console) -> dict[str, Any]:
    """Days, device-hours and money; for JSON too."""
    if budget is None:
        return {}
    lost = format_percent(budget.stretch - 1)
    share = f"{100 * budget.error:.0f} % either way, {lost} for savings and losses in it"
    say(console, f"{budget.line}: {share}")
    names = ("tokens", "days", "device_hours", "price", "cost", "stretch", "error")
    return {"budget": {name: getattr(budget, name) for name in names}}


def _losses(args: argparse.Namespace) -> dict[str, float]:
    """What was given of how often a device is lost, and what it takes to save."""
    units = {"mtbf": ("mtbf", 3600), "storage": ("bandwidth", 1e9), "restart": ("restart", 1)}
    return {
        name: unit * getattr(args, option)
        for option, (name, unit) in units.items()
        if getattr(args, option) is not None
    }


def _adder(commands: Any) -> _Add:
    def add(name: str, run: Callable, words: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=words, description=words)
        sub.add_argument("--json", action="store_true", help="print JSON instead of tables")
        sub.set_defaults(run=run)
        return sub

    return add


def _examples(sub: argparse.ArgumentParser, *commands: str) -> None:
    sub.epilog = "\n  tiledask ".join(["examples:", *commands])
    sub.formatter_class = argparse.RawDescriptionHelpFormatter


def _device(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--device", default="auto", choices=("auto", "cuda", "cpu"))


Result = tuple[int, Any]


def _tour(args: argparse.Namespace, console: Console) -> Result:
    from tiledask.lab.tour import tour

    report = tour(args.folder, device=args.device, console=console)
    tables = [table.to_dict() for section in report.sections for table in section.comparisons]
    counts = {name: getattr(report, name) for name in ("ok", "held", "checked", "put_off")}
    result = {**counts, "tables": tables}
    return (0 if report.ok else 1), result


def _notebooks(args: argparse.Namespace, console: Console) -> Result:
    from tiledask.lab.learner.contents import write_contents
    from tiledask.lab.learner.copies import copy_walkthroughs, refresh, walkthroughs
    from tiledask.lab.learner.start import lab_command

    if args.nbgrader:
        from tiledask.lab.classroom.assignment import write_assignments

        made = write_assignments(args.folder)
        say(console, f"{len(made)} walkthroughs for a class in {args.folder}")
        return 0, {"folder": args.folder, "walkthroughs": len(made), "new": []}
    new = copy_walkthroughs(walkthroughs(), args.folder)
    write_contents(walkthroughs(), Path(args.folder))
    count = len(list(Path(args.folder).glob("*.ipynb")))
    for sentence in [*new, f"{count} walkthroughs in {args.folder}: what is yours there stays."]:
        say(console, sentence)
    if args.lab is not None:
        refresh(args.folder)  # no kernel lives yet
        command, environment = lab_command(args.folder, args.lab)
        os.execve(command[0], command, environment)
    return 0, {"folder": args.folder, "walkthroughs": count, "new": new}


def _sheet(args: argparse.Namespace, console: Console) -> Result:
    from tiledask.lab.classroom.sheet import sheet
    from tiledask.lab.report import write_whole

    page = sheet(args.names, args.seed, args.answers)
    write_whole(Path(args.to), page.encode())
    say(console, f"{args.to}: open it in a browser, and print it from there")
    return 0, {"page": args.to, "seed": args.seed, "answers": args.answers}


def _grade(args: argparse.Namespace, console: Console) -> Result:
    from tiledask.lab.classroom.grading import as_csv, grade
    from tiledask.lab.report import write_whole

    def begins(name: str) -> None:
        if not args.json:
            say(console, f"judging {name}")

    grades = grade(args.folder, runs_code=args.run_code, progress=begins)
    if args.csv:
        write_whole(Path(args.csv), as_csv(grades).encode())
    rows = [(g.learner, g.notebook, str(g.task), "★" * g.stars, g.said) for g in grades]
    head = ("learner", "walkthrough", "task", "stars", "verdict")
    console.print(Grid(head, rows, left=(0, 1, 3, 4)))
    return 0, [asdict(each) for each in grades]


def _doctor(args: argparse.Namespace, console: Console) -> Result:
    from tiledask.lab import doctor

    findings = doctor.examine()
    doctor.show(findings, console)
    return 0, json.loads(doctor.to_json(findings))


def _list(args: argparse.Namespace, console: Console) -> Result:
    from tiledask.lab.planner import show_list

    return 0, show_list(args.command, args.part, console)


_COMPLETION = {
    "bash": """\
_tiledask() {
  local word=${COMP_WORDS[COMP_CWORD]} words
  if [ "$COMP_CWORD" = 1 ]; then words="%s"; else case ${COMP_WORDS[1]} in
%s
  esac; fi
  COMPREPLY=($(compgen -W "$words" -- "$word"))
}
complete -o default -F _tiledask tiledask""",
    "zsh": """\
#compdef tiledask
_tiledask() {
  local words_
  if (( CURRENT == 2 )); then words_="%s"; else case $words[2] in
%s
  esac; fi
  compadd -- ${=words_} || _files
}
(( $+functions[compdef] )) || { autoload -Uz compinit && compinit; }
compdef _tiledask tiledask""",
}
"""By shell: the subcommands, and a case of each."""


def _completion(args: argparse.Namespace, console: Console) -> Result:
    """Each subcommand's options, and the names that it takes."""
    from tiledask.lab.planner import LISTS

    (commands,) = (a for a in _parser()._actions if isinstance(a, argparse._SubParsersAction))
    named = {"fit": ("models", "recipes"), "plan": ("models", "recipes"), "idle": ("schedules",)}
    cases = []
    for name, sub in commands.choices.items():
        options = [word for each in sub._actions for word in each.option_strings]
        taken = (word for kind in named.get(name, ()) for word in LISTS[kind][1]())
        variable = {"bash": "words", "zsh": "words_"}[args.shell]  # zsh has words of its own
        cases.append(f'    {name}) {variable}="{" ".join([*options, *taken])}" ;;')
    script = _COMPLETION[args.shell] % (" ".join(commands.choices), "\n".join(cases))
    if not args.json:
        print(script)
    return 0, {"script": script}


def _fit(args: argparse.Namespace, console: Console) -> Result:
    from tiledask.lab import planner

    cluster = td.load_cluster(args.cluster)
    model, layout, recipe, sequence, imported = _asked(args, cluster.devices, console)
    recipe = td.offload(recipe, to=args.offload) if args.offload else recipe
    run = (model, layout, cluster, recipe, sequence)
    assumed = {"calibration": args.calibration, "framework": args.framework}
    fit = td.fits(*run, **assumed, cached=args.cached)
    as_run = fit.memory.recipe  # by the framework that was named
    found = td.critique(*run, **assumed) if args.critique else None
    saving = budget = beside = exported = None
    if args.tokens is not None:
        check_trains(as_run)
        check_timed(as_run)
    if fit.verdict != "no" and as_run.trains and not as_run.places:
        step = td.estimate_step(*run, **assumed)
        saving = fit.checkpointing(step.total, **_losses(args))
        budget = _budget(args, step, saving)
    if args.export:
        exported = td.export_config(model, layout, args.export, recipe=recipe, sequence=sequence)
    if args.snapshot:
        beside = fit.beside_snapshot(args.snapshot, args.stage)
    planner.show_assumed(model, console)
    planner.show_fit(fit, console)
    result = fit.to_dict() | imported
    if exported is not None:
        result["export"] = planner.show_export(exported, console)
    if saving is not None:
        result["saving"] = planner.show_saving(saving, console)
    result |= _show_budget(budget, console)
    if beside is not None:
        result["snapshot"] = planner.show_snapshot(beside, console)
    if found is not None:
        planner.show_critique(found, console)
        result["critique"] = found.to_dict()
    if args.execute:
        from tiledask.lab.claims import compare_claims

        with td.start_cluster(workers=2, quiet=True) as workers:
            run = td.run_claim(
                model.parameters, layout, cluster.device.memory_bytes, workers, recipe=recipe
            )
        table = compare_claims("states alone, allocated here at 1:1000", {"states": run})
        console.print(table)
        result["run"] = table.to_dict()
    if args.figure:
        from tiledask.lab.plots import memory_bars

        ledger, over = fit.memory.ledger, fit.overhead.total
        picture = memory_bars(ledger, fit.capacity, place="stage", overhead=over)
        save_figure(picture, args.figure)
    return (1 if fit.verdict == "no" else 0), result


def _asked(args: argparse.Namespace, devices: int, console: Console) -> tuple[Any, ...]:
    """Model, layout, recipe, sequence as typed or imported; what is typed besides goes before. And
    the facts of an import, for JSON."""
    typed = {f.name: vars(args)[f.name] for f in fields(td.Layout) if f.name in vars(args)}
    configs = [name for name in ("megatron", "torchtitan", "deepspeed") if vars(args)[name]]
    recipe, sequence = args.recipe or "mixed-adam-16", args.sequence
    if not configs:
        if args.model is None:
            raise ConfigError("a model and a cluster are named, such as: fit gpt2 1xA100-40GB")
        return td.load_model(args.model), td.Layout(**typed), recipe, sequence, {}
    if len(configs) > 1:
        raise ConfigError(f"one configuration at a time; got --{' and --'.join(configs)}")
    given = vars(args)[configs[0]]
    given = given if configs[0] == "megatron" else Path(given)
    found = td.import_config(configs[0], given, model=args.model, devices=devices)
    changed = {name: value for name, value in typed.items() if value != getattr(td.Layout(), name)}
    layout = replace(found.layout, **changed)
    say(console, f": {found.model!r}, {layout}", bold=f"read from {configs[0]}")
    for line in found.assumed:
        say(console, f"  {line}")
    facts = {"layout": vars(layout), "recipe": found.recipe, "assumed": list(found.assumed)}
    given = args.recipe or found.recipe, args.sequence or found.sequence
    return found.model, layout, *given, {"imported": facts}


def _plan(args: argparse.Namespace, console: Console) -> Result:
    from tiledask.lab import planner

    model, cluster = td.load_model(args.model), td.load_cluster(args.cluster)
    options = {"sequence": args.sequence, "recipe": args.recipe}
    if args.devices:
        options["devices"] = _whole_numbers(args.devices, "devices")
    assumed = {"calibration": args.calibration, "framework": args.framework}
    plans = td.search(model, cluster, args.batch, **options, **assumed)
    best, saving, budget = plans.best, None, None
    if best.verdict != "no":
        saving = best.checkpointing(**_losses(args))
        budget = _budget(args, best.step, saving)
    exported = best.to(args.export) if args.export else None
    planner.show_assumed(model, console)
    asked = [args.model, args.cluster, "--sequence", str(plans.sequence)]
    asked += ["--recipe", args.recipe or plans.recipe.name]
    for name in ("framework", "calibration"):
        asked += [f"--{name}", vars(args)[name]] if vars(args)[name] else []
    planner.show_plans(plans, args.first, console, asked)
    options |= assumed
    asked_for = model, cluster, args.batch
    relaxed = [] if args.no_sensitivity else td.sensitivity(*asked_for, plans=plans, **options)
    if saving is not None:
        planner.show_step(best.step, console)
    for each in relaxed:
        say(console, f"  {each}")
    if args.figure or args.map:
        from tiledask.lab.plots import feasibility, pareto

        for draw, path in ((pareto, args.figure), (feasibility, args.map)):
            if path:
                save_figure(draw(plans), path)
    result = plans.to_dict(args.first) | {"sensitivity": [each.to_dict() for each in relaxed]}
    if exported is not None:
        result["export"] = planner.show_export(exported, console)
    if saving is not None:
        result["step"] = best.step.to_dict()
        result["saving"] = planner.show_saving(saving, console)
        result |= _show_budget(budget, console)
    return (1 if best.verdict == "no" else 0), result


def _ask(args: argparse.Namespace, console: Console) -> Result:
    from tiledask.lab.questions import terminal

    if not args.question:
        return terminal.list_all(console)
    asked, inputs = " ".join(args.question), terminal.read_inputs(args.set)
    answer = terminal.asked(asked, inputs, args.figure, run=not args.no_run)
    say(console, answer.to_text(console.width, args.explain).rstrip())
    return (0 if answer.ok else 1), answer.to_dict()


def _numbers(text: str, what: str) -> list[float]:
    try:
        return [float(word) for word in text.split(",")]
    except ValueError:
        raise ConfigError(
            f"{what} are numbers between commas, such as 1,1,2; got {short(text)}"
        ) from None


def _whole_numbers(text: str, what: str) -> list[int]:
    numbers = _numbers(text, what)
    if not all(n.is_integer() for n in numbers):  # infinity is none
        raise ConfigError(
            f"{what} are whole numbers between commas, such as 64,128; got {short(text)}"
        )
    return [int(n) for n in numbers]


def _costs(layers: str) -> Sequence[float]:
    """Costs from a number of equal layers, or from numbers between commas."""
    return layer_costs(int(layers[:30]) if layers.isdecimal() else _numbers(layers, "costs"))


def _sizes(text: str | None) -> list[int] | None:
    return [parse_bytes(word) for word in text.split(",")] if text else None


def _one_or_all(values: list | None) -> Any:
    """The number itself where one stands for all."""
    return values[0] if values and len(values) == 1 else values


def _partition(args: argparse.Namespace, console: Console) -> Result:
    from tiledask.lab.partitions import show_partition, show_verdict

    costs = _costs(args.layers)
    layers, chunks = len(costs), count(args.chunks, "--chunks")
    given = {args.devices, args.on} - {None}
    if len(given) != 1:
        raise ConfigError(
            f"one number of devices is needed, got {' and '.join(map(str, given)) or 'none'}; "
            f"write it behind the layers, such as: partition {args.layers[:40]} 4"
        )
    devices = count(given.pop(), "devices")
    if layers < devices * chunks:
        what, most = ("device", layers) if chunks == 1 else ("chunk", layers // chunks)
        stages = f"{devices} devices" + (f" x {chunks} chunks" if chunks > 1 else "")
        raise ConfigError(
            f"every {what} needs a layer of its own, and {layers} layers are fewer than {stages}; "
            f"use at most {most} devices"
        )
    memory, capacity = _sizes(args.memory), _sizes(args.capacity)
    if (memory is None) != (capacity is None):
        missing = "--capacity 8GB" if capacity is None else "--memory 1GB"
        raise ConfigError(
            f"--memory, the bytes of each layer, and --capacity, those of each device, go "
            f"together; add one such as {missing}"
        )
    speeds, sends = (
        _numbers(text, name) if (text := getattr(args, name)) else None
        for name in ("speeds", "communication")
    )
    inputs = {
        "speeds": speeds,
        "memory": memory * layers if memory and len(memory) == 1 else memory,
        "capacity": _one_or_all(capacity),
        "communication": _one_or_all(sends),
        "chunks": chunks,
    }
    told = inputs | {"costs": costs, "devices": devices}
    result, code = {"layers": layers, "devices": devices, "chunks": chunks}, 0
    if args.judge:
        verdict = td.judge(args.judge, devices=devices, costs=costs, **inputs)
        result |= show_verdict(verdict, args.judge, told, console)
        code = 0 if verdict else 1
    if not args.judge or args.solution:
        best = show_partition(td.partition(costs, devices * chunks, **inputs), told, console)
        result |= {"solution": best} if args.judge else best
    return code, result


def _puzzle(args: argparse.Namespace, console: Console) -> Result:
    from tiledask.lab.tasks import terminal

    if args.puzzle is None:
        return terminal.list_all(console)
    given = (args.answer, console, args.hint, args.figure, args.seed)
    return terminal.play(args.puzzle, *given)


def _idle(args: argparse.Namespace, console: Console) -> Result:
    from tiledask.lab.pipelines import idle

    if args.diagnose is None:
        if any(given is not None for given in (args.unit, args.layers, args.memory_limit)):
            raise ConfigError("--unit, --layers and --memory-limit go with --diagnose TRACE")
        return idle(args, console)
    others = ("schedule", "devices", "microbatches", "order", "utilisation", "figure", "trace")
    if any(getattr(args, name) is not None for name in others):
        raise ConfigError(
            "--diagnose finds schedule, devices and micro-batches in the trace and writes no "
            "figure and no trace; leave them out"
        )
    return _diagnose(args, console)


def _diagnose(args: argparse.Namespace, console: Console) -> Result:
    found = td.diagnose(
        args.diagnose,
        unit=args.unit,
        layers=_costs(args.layers) if args.layers else None,
        memory_limit=args.memory_limit,
    )
    say(console, str(found))
    return 0, found.to_dict()


def _matmul(args: argparse.Namespace, console: Console) -> Result:
    from tiledask.lab.products import matmul

    return matmul(args, console)


if __name__ == "__main__":
    sys.exit(main())
