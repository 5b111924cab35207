"""The command line: thin calls into the package, tables for people and --json for programs."""

import argparse
import difflib
import json
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from rich.console import Console

import tiledask as td
from tiledask.errors import ConfigError, short
from tiledask.extras import needs
from tiledask.lab.commands import course, fit, plan
from tiledask.lab.commands.options import whole as _whole
from tiledask.lab.files import check_figure
from tiledask.lab.table import say
from tiledask.plan.data import meant
from tiledask.plan.products.product import algorithms
from tiledask.plan.splitting.exact import count
from tiledask.plan.splitting.partition import layer_costs
from tiledask.plan.units import parse_bytes, parse_count

__all__ = ["main"]

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
    parser = _parser()
    args, unknown = parser.parse_known_args(arguments)
    if unknown:
        said = _unknown(unknown[0], parser, args.command)
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


OTHER_WORDS = {
    "stages": "pp",
    "pipeline-parallel": "pp",
    "tensor-parallel": "tp",
    "data-parallel": "dp",
    "context-parallel": "cp",
    "expert-parallel": "ep",
    "gpus": "devices",
    "seq-len": "sequence",
    "chunks": "interleave",
    "lora": "lora-rank",
    "checkpointing": "recompute",
}
"""What others call an option -> its name here, where it is no name of the command's own."""


def _unknown(word: str, parser: argparse.ArgumentParser, command: str) -> str:
    """What is said of an argument that ``command`` does not have: the nearest that it has."""
    (commands,) = (a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    actions = {w: a for a in commands.choices[command]._actions for w in a.option_strings}
    name = word.partition("=")[0]
    near = [f"--{OTHER_WORDS.get(name.lstrip('-'), '')}"]
    near += difflib.get_close_matches(name, actions, 1, 0.6) if name.startswith("-") else []
    said = [f"did you mean {each}: {actions[each].help}? " for each in near if each in actions]
    return f"no argument {short(word)}; {''.join(said[:1])}tiledask {command} --help has them all"


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="tiledask", description=td.__doc__.splitlines()[0])
    parser.add_argument("--version", action="version", version=td.__version__)
    commands = parser.add_subparsers(dest="command", required=True)
    add = _adder(commands)
    for room in (_of_this_machine, _of_planning, _of_the_course, _of_running):
        room(add)
    return parser


def _of_this_machine(add: _Add) -> None:
    sub = add("list", _list, "the models, hardware, recipes or schedules that are shipped")
    kinds = ("models", "hardware", "recipes", "schedules")
    sub.add_argument("kind", choices=kinds, help=", ".join(kinds), metavar="KIND")
    sub.add_argument("part", nargs="?", default="", help="of a name, such as llama; all if none")
    course.add(add)


def _of_planning(add: _Add) -> None:
    for command in (fit, plan):
        command.add(add)


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
        "matmul 2048x4096 4096x1024 --dtype float64 --algorithm cannon --workers 4",
        "matmul 65536 --workers 64 --algorithm 2.5d --no-run",
    )
    words = "N of N x N by N x N (4096); A and B as written, 2048x1024 1024x4096; or M N K, the "
    words += "inner size last (2048 4096 1024 is the same): A is M x K and B is K x N"
    sub.add_argument("sizes", metavar="SIZE", nargs="*", help=words)
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
        "idle 1f1b 2 4 --write-order order.txt",
        "idle --order order.txt --forward 1,2 --backward 2,4",
    )
    names = ", ".join(td.schedules).replace("naive", "naive (or layer-wise)")
    sub.add_argument("schedule", metavar="SCHEDULE", nargs="?", help=names)
    whole: dict[str, Any] = {"type": _whole, "nargs": "?"}
    sub.add_argument("devices", metavar="DEVICES", help="how many, for every schedule", **whole)
    sub.add_argument("microbatches", metavar="MICROBATCHES", help="of a step (naive: 1)", **whole)
    for name in ("devices", "microbatches"):
        words = f"the same as {name.upper()}"
        sub.add_argument(f"--{name}", dest=f"{name}_option", metavar="N", type=_whole, help=words)
    words = "stages on each device, of interleaved, looped-bfs, interleaved-zb (2)"
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
    files.add_argument("--write-order", metavar="FILE", help="write the order, for --order")
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


class _Parser(argparse.ArgumentParser):
    """One whose complaints stay short, whatever was typed; -2T is a number, and no option."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._negative_number_matcher = re.compile(r"-\.?[0-9].*")

    def error(self, message: str) -> NoReturn:
        if wrong := re.search(r"invalid choice: '(.*)' \(choose from (.*)\)", message):
            near = meant(wrong[1], re.findall(r"'([^']*)'", wrong[2]))
            message += f"; {near}".rstrip("; ")
        message = message if len(message) < 500 else f"{message[:250]} ... {message[-200:]}"
        end = "" if message.endswith("?") else ";"
        self.exit(2, f"{self.prog}: {message}{end} {self.prog} --help says more\n")


def _adder(commands: Any) -> _Add:
    def add(name: str, run: Callable, words: str, examples: str = "") -> argparse.ArgumentParser:
        shape = argparse.RawDescriptionHelpFormatter
        sub = commands.add_parser(
            name, help=words, description=words, epilog=examples, formatter_class=shape
        )
        sub.add_argument("--json", action="store_true", help="print JSON instead of tables")
        sub.set_defaults(run=run)
        return sub

    return add


def _examples(sub: argparse.ArgumentParser, *commands: str) -> None:
    sub.epilog = "\n  tiledask ".join(["examples:", *commands])


def _device(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("--device", default="auto", choices=("auto", "cuda", "cpu"))


Result = tuple[int, Any]


def _list(args: argparse.Namespace, console: Console) -> Result:
    from tiledask.lab.commands import lists

    return lists.run(args, console)


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


def _costs(layers: str) -> Sequence[float]:
    """Costs from a number of equal layers, or from numbers between commas."""
    return layer_costs(int(layers[:30]) if layers.isdecimal() else _numbers(layers, "costs"))


def _sizes(text: str | None) -> list[int] | None:
    return [parse_bytes(word) for word in text.split(",")] if text else None


def _one_or_all(values: list | None) -> Any:
    """The number itself where one stands for all."""
    return values[0] if values and len(values) == 1 else values


def _partition(args: argparse.Namespace, console: Console) -> Result:
    from tiledask.lab.commands.partition import show_partition, show_verdict

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
    from tiledask.lab.commands.idle import idle

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
    from tiledask.lab.commands.matmul import matmul

    return matmul(args, console)


if __name__ == "__main__":
    sys.exit(main())
