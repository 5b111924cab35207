"""Numbers in the walkthroughs' text are those of their cells, or worked out where they stand.

A number of four digits or two decimals is in the notebook's code, in an output that is stored (and
that nbval compares), or the value of arithmetic beside it. What comes from outside is listed.
And percentages are written one way, "27.3 %", in the package's strings and in every page.
"""

import ast
import json
import operator
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from oracles.finished import ROOT

NOTEBOOKS = sorted((ROOT / "nbs").glob("*.ipynb"))
NUMBER = r"\d[\d,]*(?:\.\d+)?"
TOLD = re.compile(
    r"(?<![\w.,])(?:\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d{4,}(?:\.\d+)?|\d+\.\d{2,})(?!\w|\.\d)"
)
NO_NUMBER = re.compile(r"\]\([^)]*\)|arXiv[: ]*\d{4}\.\d+|\b(?:19|20)\d\d\b(?![,.]\d)")
SCALES = (1.0, 100.0, 1e-3, 1e-6, 1e-9)
"""A share told in percent; bytes told in kB, MB and GB."""
SIGNS = {"×": "*", "·": "*", "−": "-", "–": "-", "^": "**", "²": "**2", "³": "**3"}
DOES = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}
FROM_OUTSIDE: dict[str, set[str]] = {
    name: {*words.split()}
    for name, words in {
        "01_does_it_fit": "1.003 39.88",
        "06_layers_of_copies": "15.84",
        "07_write_a_tile_kernel": "32,768",
        "08_shared_memory_and_tensor_cores": "5,120",
        "10_split_a_decoder_layer": "1.3143 3,136",
        "12_split_a_convolution": "2.652192",
        "13_split_in_space": "5.305888",
        "14_cut_24_layers": "1304",
        "23_break_it_and_find_it": "250,880",
        "24_half_precision": "1.55 80,000",
        "25_several_hosts": "21.25",
        "26_how_often_to_save": "1.46",
        "29_capstone": "1,771",
    }.items()
}
"""Of a walkthrough: numbers of papers and data sheets, or of a sentence that no cell works out."""


def value(node: ast.AST) -> float:
    """Of plain arithmetic; ValueError for whatever else, and for powers that take for ever."""
    match node:
        case ast.Expression(body):
            return value(body)
        case ast.Constant(int() | float() as number):
            return float(number)
        case ast.UnaryOp(ast.USub(), of):
            return -value(of)
        case ast.BinOp(left, does, right) if type(does) in DOES:
            a, b = value(left), value(right)
            if isinstance(does, ast.Pow) and not (abs(a) < 1e6 and abs(b) < 40):
                raise ValueError(node)
            return float(DOES[type(does)](a, b))
    raise ValueError(node)


def worked_out(text: str) -> set[float]:
    """The values of all arithmetic in ``text``, words and units left out.

    >>> sorted(worked_out("2 x 4 x 8 bytes = 64, and 18.5 + 0.5 ms"))
    [19.0, 64.0]
    """
    found = set()
    for part in re.split(r"[=≈;:]|\bis\b|, |\. |\n\n", text):
        for sign, plain in SIGNS.items():
            part = part.replace(sign, plain)
        part = re.sub(r"(?<=\d) x (?=[\d(])", " * ", part)
        part = re.sub(r"(\d),(?=\d{3})", r"\1", part)
        part = re.sub(r"[A-Za-zµ%$`_\\]+(?:/[A-Za-z]+)?", " ", part)
        for written in re.findall(r"[\d.()*/+\- ]{3,}", part):
            for cut in {written.strip(), written.strip(" +-*/.("), written.strip(" +-*/.()")}:
                each = re.sub(r"(\d) +(?=[\d(])", r"\1*", cut)
                try:
                    tree = ast.parse(each, mode="eval")
                    if isinstance(tree.body, ast.BinOp):  # a number alone is not worked out
                        found.add(value(tree))
                except (ValueError, SyntaxError, ArithmeticError, MemoryError, RecursionError):
                    continue
    return found


def number(text: str) -> float:
    return float(text.replace(",", ""))


def unsaid(notebook: dict) -> Iterator[str]:
    """The numbers of the notebook's text that no cell of it says and nothing beside them makes."""
    known: set[float] = set()
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            said = "".join(cell["source"]).replace("_", "")
            for output in cell["outputs"]:
                said += " " + "".join(output.get("text", []))
                said += " " + "".join(output.get("data", {}).get("text/plain", []))
            known |= {number(each) for each in re.findall(NUMBER, said)}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "markdown":
            text = NO_NUMBER.sub(" ", "".join(cell["source"]))
            there = known | worked_out(text)
            yield from (told for told in TOLD.findall(text) if not is_one_of(told, there))


def is_one_of(told: str, known: set[float]) -> bool:
    """Whether ``told`` is one of the values that are known, rounded as it is written."""
    half = 0.505 * 10 ** -len(told.partition(".")[2])
    return any(abs(number(told) - each * scale) <= half for each in known for scale in SCALES)


@pytest.mark.long
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_number_in_the_text_is_one_of_the_cells(path):
    notebook = json.loads(path.read_text("utf-8"))
    assert set(unsaid(notebook)) == FROM_OUTSIDE.get(path.stem, set())


@pytest.mark.long
def test_a_number_that_is_changed_is_found():
    """Its first digit: in the text of all walkthroughs four times of five and more."""
    caught = tried = 0
    for path in NOTEBOOKS:
        notebook = json.loads(Path(path).read_text("utf-8"))
        known = {*unsaid(notebook)}
        for cell in notebook["cells"]:
            before = cell["source"]
            for told in TOLD.findall("".join(before)) if cell["cell_type"] == "markdown" else ():
                if told in known or told.startswith(("19", "20")):
                    continue
                other = ("3" if told[0] != "3" else "7") + told[1:]
                cell["source"] = ["".join(before).replace(told, other)]
                tried += 1
                caught += other in {*unsaid(notebook)}
            cell["source"] = before
    assert tried > 200
    assert caught > 0.8 * tried


CLOSE = re.compile(r"[\d})]%(?![\w(])")
"""A number and its sign without a space; no "%d", "%20" or "%(default)s"."""
CSS = re.compile(r"\b100%|gradient\(.*")
"""Whatever fills its box, and the stops of a gradient: no person reads them."""
PAGES = [
    *ROOT.glob("*.md"),
    *(page for part in ("nbs", "tiledask", "data") for page in ROOT.joinpath(part).rglob("*.md")),
]


def strings(code: str) -> Iterator[tuple[int, str]]:
    """Each string of ``code`` with its line; "}" where an f-string has a value."""
    parts = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.JoinedStr):
            parts |= {id(part) for part in node.values}
            said = (part.value if isinstance(part, ast.Constant) else "}" for part in node.values)
            yield node.lineno, "".join(said)
        elif isinstance(getattr(node, "value", 0), str) and id(node) not in parts:
            yield node.lineno, node.value


def close(path: Path) -> list[str]:
    """Where ``path``, a module or a page, writes "27.3%"."""
    text = path.read_text("utf-8")
    told = strings(text) if path.suffix == ".py" else enumerate(text.splitlines(), 1)
    return [f"{path}:{line}: {said}" for line, said in told if CLOSE.search(CSS.sub("", said))]


def test_a_space_is_before_every_percent_sign():
    modules = [*ROOT.joinpath("tiledask").rglob("*.py")]
    assert len(modules) > 300
    assert len(PAGES) > 10
    assert [each for path in (*modules, *PAGES) for each in close(path)] == []


@pytest.mark.parametrize(
    ("name", "text", "found"),
    [
        ("a.py", 'f"{x:.1%}"', True),
        ("a.py", 'f"idle {x} and {x:{sign}.0%}"', True),
        ("a.py", '"{:.0%}".format', True),
        ("a.py", 'f"{100 * x:.1f}% idle"', True),
        ("a.py", 'def f():\n    """At most 5% more."""', True),
        ("a.py", 'f"{100 * x:.1f} % of {t:%H:%M}, {x}%s"', False),
        ("a.py", '"(%(default)s)", "a%20b", "width: 100%", 5 % 3, 5%3', False),
        ("a.py", 'f"radial-gradient({ink} 25%,transparent 30%)"', False),
        ("a.md", "| 27.3% |", True),
        ("a.md", "| 27.3 % |", False),
    ],
)
def test_a_planted_percent_sign_is_found(tmp_path, name, text, found):
    path = tmp_path / name
    path.write_text(text)
    assert bool(close(path)) == found
