"""One voice: forty questions, each asked in every way there is, and one right value for all.

    question | worked out by hand | a way to ask | another convention: its right value, and the way

A way is what people write: td.*, typed("a command"), ask(a question's number), and what a
notebook has shown beside a prediction. What differs in another convention is said beside it.
"""

import json
import re
from pathlib import Path

import pytest
from voice_bytes import BYTES, MEMORY
from voice_time import CUTS, IDLE

import tiledask as td

TABLE = MEMORY + BYTES + IDLE + CUTS
NOTEBOOKS = Path(__file__).parents[2] / "nbs"
UNITS = {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12, "s": 1, "ms": 1e-3, "%": 0.01}
PRINTED = 1e-3
"""As far off as four printed digits may be."""


def ask(number, **inputs):
    return td.ask(number, run=False, **inputs).values


def shown(notebook, question):
    """What a notebook shows beside a prediction: by formula, simulated, measured."""
    (path,) = NOTEBOOKS.glob(f"{notebook:02}_*.ipynb")
    cells = json.loads(path.read_text("utf-8"))["cells"]
    outputs = [each for cell in cells for each in cell.get("outputs", ())]
    texts = ["".join(o.get("text", o.get("data", {}).get("text/plain", ""))) for o in outputs]
    lines = "\n".join(texts).splitlines()
    (line,) = [each for each in lines if each.startswith(f"{question} | ")]
    found = re.findall(r"(?:formula|simulated|measured) ([\d.,]+)(?: (\S+))?", line)
    return {float(n.replace(",", "")) * UNITS.get(unit, 1) for n, unit in found}


def held(model, layout, recipe, *tensors, **more):
    """Bytes of some tensors on the first device, by the ledger of td.estimate_memory."""
    ledger = td.estimate_memory(model, layout, recipe, **more).ledger.by_tensor(0)
    return sum(ledger[name] for name in tensors)


def simulated(name, stages, microbatches, *times, **named):
    return td.simulate(td.schedule(name, stages, microbatches), *times, **named)


def calls_of(*layers):
    """The collectives of layers on 4 ranks, forward and backward."""
    of = {"ranks": 4, "batch": 1, "tokens": 32, "width": 64, "heads": (4, 4, 16)}
    labels = [call.label for layer in layers for call in td.layer_calls(layer, **of)]
    return [sum(way in label for label in labels) for way in ("forward", "backward")]


def calls_of_a_training():
    """All-reduces of the layer in the program of a training split over 2, by direction."""
    model = td.GPT(64, hidden=16, layers=1, heads=4, sequence=8)
    text = td.training_program(model, (1, 2, 1), batch=2).role_text(0)
    summed = [line for line in text.splitlines() if " = all_reduce " in line and "layer" in line]
    return [sum(way in line for line in summed) for way in ("forward", "backward")]


def summa(n):
    tiling = td.Tiling((n, n), (2, 2), (td.Shard(0), td.Shard(1)))
    return td.algorithms["summa"](tiling, tiling).traffic(4).total


def stages_that_hold_the_weights():
    """The fewest stages of gpt-200b, served, that td.fits does not refuse on GPUs of 40 GB."""
    for pp in range(9, 15):
        alone = td.Layout(pp=pp)
        if td.fits("gpt-200b", alone, f"{pp}xA100-40GB", "fp16-weights", 1).verdict != "no":
            return pp
    return 0


def same(found, right, off):
    if isinstance(found, list | tuple) and isinstance(right, list | tuple):
        return len(found) == len(right) and all(map(same, found, right, [off] * len(right)))
    if not all(isinstance(x, int | float) and not isinstance(x, bool) for x in (found, right)):
        return type(found) is type(right) and found == right
    return found == pytest.approx(right, rel=off, abs=1e-12)


ASKED = [
    pytest.param(*pair[::-1], id=f"{question}: {pair[1]}", marks=marks)
    for question, right, *ways in TABLE
    for way in ways
    for pair in [way if isinstance(way, tuple) else (right, way)]
    for marks in [[pytest.mark.cluster] if "'matmul" in pair[1] else []]
]


@pytest.fixture(scope="module")
def answered():
    """What commands have answered, once."""
    return {}


@pytest.mark.parametrize(("way", "right"), ASKED)
def test_every_way_gives_the_right_value(typed, answered, way, right):
    def facts(command):
        if command not in answered:
            answered[command] = typed(f"{command} --json").json
        return answered[command]

    found = eval(way, globals() | {"typed": facts})
    for each in found if isinstance(found, set) else [found]:
        assert same(each, right, PRINTED if isinstance(found, set) else 1e-9)


def test_there_are_forty_questions():
    assert len({question for question, *_ in TABLE}) == len(TABLE) >= 40
    assert len(ASKED) >= 125
