"""The command line: thin calls into the package, tables for people and --json for programs."""

import argparse
import json
import re
import sys
from collections.abc import Sequence
from functools import cache, partial
from importlib import import_module
from typing import Any, NoReturn

import tiledask as td
from tiledask.errors import ConfigError, short
from tiledask.plan.data import data_file

__all__ = ["main"]

ERRORS = (ValueError, MemoryError, TimeoutError, RuntimeError, OSError)
OTHER_WORDS = {
    "stages": "pp",
    "gpus": "devices",
    "seq-len": "sequence",
    "chunks": "interleave",
    "checkpointing": "recompute",
}
"""What others call an option -> its name here, where it is no name of the command's own; and
tensor-parallel is tp by its initials."""


def main(arguments: Sequence[str] | None = None) -> int:
    """0 if all went well, 1 if a claim failed or a plan does not fit, 2 for a mistaken request."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    command = words[0] if words and words[0] in commands() else ""
    name, code = f"tiledask {command}", 1
    try:
        parser = _parser(command)
        args, unknown = parser.parse_known_args(words)
        if unknown:
            raise ConfigError(_unknown(unknown[0], parser, command))
        if vars(args).get("figure"):  # refused before the work begins
            from tiledask.lab.commands.options import check_figure

            check_figure(args.figure)
        code, result = _played(args)
        if args.json:
            print(json.dumps(result, indent=1), flush=True)
    except BrokenPipeError:  # such as: tiledask ... | head
        sys.stdout = None
    except ERRORS as error:
        said = ConfigError(str(error) or type(error).__name__)  # others' are made short, too
        print(f"{name}: {said}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        from tiledask.extras import needs

        print(needs(f"{name}:", error), file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"{name}: stopped", file=sys.stderr)
        return 130
    return int(code)


def _played(args: argparse.Namespace) -> tuple[int, Any]:
    """What the command returns; what it yields is printed."""
    from tiledask.plan.tables import print_parts

    args.echo = partial(print_parts, file=sys.stderr if args.json else None)
    steps = args.run(args)
    while True:
        try:
            args.echo(next(steps))
        except StopIteration as end:
            code, result = end.value
            return code, result


def _unknown(word: str, parser: argparse.ArgumentParser, command: str) -> str:
    """What is said of an argument that ``command`` does not have: the nearest that it has."""
    import difflib

    (subs,) = (a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    actions = {w: a for a in subs.choices[command]._actions for w in a.option_strings}
    name = word.partition("=")[0]
    parts = re.findall(r"\w+", name)
    near = [f"--{OTHER_WORDS.get('-'.join(parts)) or ''.join(part[0] for part in parts)}"]
    near += difflib.get_close_matches(name, actions, 1, 0.6) if name.startswith("-") else []
    said = [f"did you mean {each}: {actions[each].help}? " for each in near if each in actions]
    return f"no argument {short(word)}; {''.join(said[:1])}tiledask {command} --help has them all"


@cache
def commands() -> dict[str, tuple[str, str, str]]:
    """Command -> its module in tiledask.lab.commands, which is loaded if it is typed and where
    run_NAME runs it; its help; and its options, as data/commands.txt has them."""
    text = data_file("commands.txt").read_text("utf-8")
    _, *parts = re.split(r"^\[(\w+)(?: in (\w+))?\] ?(.*)\n", text, flags=re.M)
    rows = [parts[i : i + 4] for i in range(0, len(parts), 4)]
    shared = {name: options.strip() for name, module, _, options in rows if not module}
    return {
        name: (module, words, re.sub(r"@(\w+)", lambda found: shared[found[1]], options))
        for name, module, words, options in rows
        if module
    }


def _parser(command: str = "") -> argparse.ArgumentParser:
    """Of ``command`` with its options; without one, all commands by name."""
    parser = _Parser(prog="tiledask", description=(td.__doc__ or "").splitlines()[0])
    parser.add_argument("--version", action="version", version=td.__version__)
    subs = parser.add_subparsers(dest="command", required=True)
    if not command:
        for name, (_, words, _) in commands().items():
            subs.add_parser(name, help=words, add_help=False)
        return parser
    from tiledask.lab.commands.options import add_options

    module, words, options = commands()[command]
    shape = argparse.RawDescriptionHelpFormatter
    sub = subs.add_parser(command, help=words, description=words, formatter_class=shape)
    sub.add_argument("--json", action="store_true", help="print JSON instead of tables")
    add_options(sub, options)
    home = import_module(f"tiledask.lab.commands.{module}")
    sub.set_defaults(run=getattr(home, f"run_{command}"))
    return parser


class _Parser(argparse.ArgumentParser):
    """One whose complaints stay short, whatever was typed; -2T is a number, and no option."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._negative_number_matcher = re.compile(r"-\.?[0-9].*")

    def error(self, message: str) -> NoReturn:
        if wrong := re.search(r"invalid choice: '(.*)' \(choose from (.*)\)", message):
            from tiledask.plan.data import meant

            near = meant(wrong[1], re.findall(r"'([^']*)'", wrong[2]))
            message += f"; {near}".rstrip("; ")
        message = message if len(message) < 500 else f"{message[:250]} ... {message[-200:]}"
        end = "" if message.endswith("?") else ";"
        self.exit(2, f"{self.prog}: {message}{end} {self.prog} --help says more\n")


if __name__ == "__main__":
    sys.exit(main())
