"""`tiledask ask` and `tiledask puzzle`: a question of the course, a task that judges answers."""

import argparse

from tiledask.lab.commands.options import Run

__all__ = ["ASK_OPTIONS", "EXAMPLES", "PUZZLE_OPTIONS", "run_ask", "run_puzzle"]

EXAMPLES = """\
examples:
  tiledask ask
  tiledask ask 34 --set layers=30 --no-run
  tiledask ask 24 layers on 4 devices --no-run
  tiledask ask "does 200B fit on 40GB GPUs" --no-run
  tiledask ask 12 --no-run --explain
"""
ASK_OPTIONS = f"""
QUESTION*            its number, or words that it has; none lists all
--set INPUT=VALUE+   change inputs, such as layers=12 devices=3
--no-run             arithmetic and simulation only
--explain            what the inputs are, and more working
{EXAMPLES}"""
PUZZLE_OPTIONS = """
PUZZLE?              a level, a name or a JSON file; none lists all
--answer ANSWER+     one or more answers, or files with one each; - reads standard input
--hint               one more hint than before
--seed N             draws the numbers of idle-1 to idle-12 (0)
--figure FILE        draw the task, or the last answer
"""


def run_ask(args: argparse.Namespace) -> Run:
    """The answer; 1 if a claim of its run fails."""
    from tiledask.lab.course.ask import answered, list_all, read_inputs

    if not args.question:
        return list_all(args.console)
    given = read_inputs(args.set)
    answer = answered(" ".join(args.question), given, run=not args.no_run)
    yield answer.to_text(args.console.width, args.explain).rstrip()
    return (0 if answer.ok else 1), answer.to_dict()


def run_puzzle(args: argparse.Namespace) -> Run:
    """The task, or what answers are worth: 1 if one does not solve it."""
    from tiledask.lab.tasks import play

    yield from ()  # it prints as it goes
    if args.puzzle is None:
        return play.list_all(args.console)
    it = args.puzzle, args.answer, args.console, args.hint, args.figure, args.seed
    return play.play(*it)
