"""The size law: each room has the lines that pyproject.toml gives it, [tool.size], or fewer.

What one room gets, another gives: the rooms add up to no more than the whole. A change may bring
SLACK lines, which the next one takes out. What is won stays: a room well under its number lowers
it. Lines of code are no blank ones, comments, docstrings or imports. `python
tests/laws/test_size.py` prints today's table.
"""

import ast
import tomllib
from collections import Counter
from functools import cache
from pathlib import Path

import tiledask as td

ROOT = Path(__file__).resolve().parents[2]
TOOL = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
SIZE = TOOL["size"]
KINDS = (".py", ".pyi", ".js", ".css", ".cu", ".cuh", ".cpp", ".h")
SLACK = 30
"""Lines that a room may have beyond its number, so that a first change need not be a second one."""
LONG = 500
"""Lines of a file that nobody reads in one go."""


def code_lines(text):
    """Lines of Python that are no blank, comment, docstring or import."""
    lines = [line.strip() for line in text.splitlines()]
    idle = {i for i, line in enumerate(lines, 1) if not line}
    comments, texts = {i for i, line in enumerate(lines, 1) if line.startswith("#")}, set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant | ast.JoinedStr) and node.end_lineno > node.lineno:
            texts |= {*range(node.lineno + 1, node.end_lineno + 1)}
        first = body[0] if isinstance(body := getattr(node, "body", None), list) and body else None
        said = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
        if said and isinstance(first.value.value, str):
            idle |= {*range(first.lineno, first.end_lineno + 1)}
        if isinstance(node, ast.Import | ast.ImportFrom):
            idle |= {*range(node.lineno, node.end_lineno + 1)}
    return len(lines) - len(idle | comments - texts)


@cache
def sizes():
    """File -> (room, lines, lines of code); a room is a folder two below the top."""
    found = {}
    for path in sorted(p for top in ("tiledask", "tests") for p in (ROOT / top).rglob("*.*")):
        if path.suffix in KINDS and path.is_file():
            text, parts = path.read_text(), path.relative_to(ROOT).parts
            lines = text.count("\n")
            code = code_lines(text) if path.suffix in (".py", ".pyi") else lines
            found[path] = ("/".join(parts[: min(3, len(parts) - 1)]), lines, code)
    return found


def rooms():
    """Room -> [lines, lines of code]."""
    lines, code = Counter(), Counter()
    for room, more, more_code in sizes().values():
        lines[room] += more
        code[room] += more_code
    return {room: [lines[room], code[room]] for room in lines}


def test_every_room_is_within_its_lines():
    now, may = rooms(), SIZE["rooms"]
    assert now.keys() == may.keys(), "a room without lines, or lines without a room"
    over = [
        f"{room} has {have} lines, {have - most} more than pyproject.toml says; {SLACK} are free: "
        "take out as much, or lower another room there and say in the commit what users get"
        for room in may
        for have, most in zip(now[room], may[room], strict=True)
        if have > most + SLACK
    ]
    assert not over, "\n".join(over)


def test_what_was_won_stays():
    now = rooms()
    loose = [
        f'set "{room}" = {now[room]}, so that what was won stays'
        for room, most in SIZE["rooms"].items()
        if any(
            have < most_ - max(20, most_ // 20) for have, most_ in zip(now[room], most, strict=True)
        )
    ]
    assert not loose, "\n".join(loose)


def test_the_rooms_add_up_to_no_more_than_the_whole():
    for top, whole in (("tiledask", SIZE["package"]), ("tests", SIZE["tests"])):
        parts = [most for room, most in SIZE["rooms"].items() if room.split("/")[0] == top]
        assert sum(lines for lines, _ in parts) <= whole
        now = sum(lines for room, (lines, _) in rooms().items() if room.split("/")[0] == top)
        assert now <= whole + 2 * SLACK, f"{top} has {now} lines, and {whole} in pyproject.toml"


def test_long_files_and_public_names_get_no_more():
    long = [str(path.relative_to(ROOT)) for path, (_, n, _) in sizes().items() if n > LONG]
    assert len(long) <= SIZE["long_files"], long
    assert len(td.__all__) <= SIZE["names"]


if __name__ == "__main__":
    for room, (lines, code) in sorted(rooms().items()):
        print(f'"{room}" = [{lines}, {code}]')
