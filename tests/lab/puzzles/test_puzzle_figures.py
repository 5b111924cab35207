"""Drawings of puzzles: the task, right and wrong answers, nonsense; what is wrong is marked."""

import pytest

from tiledask.lab.puzzles import figures, load_puzzle, puzzle_names
from tiledask.plan.pipelines.schedules import schedule


def text(name, stages, microbatches, **options):
    return schedule(name, stages, microbatches, **options).to_text()


EVEN = "1-6 | 7-12 | 13-18 | 19-24"
ONE_F = text("1f1b", 2, 4)


ODD = {
    "two-chunks-each": ["1-3 | 99", [n % 3 for n in range(12)], "2-1 | 3,3", "9" * 30, 3.5],
    "24-memory-cap": ["1-3 | 99", EVEN, "1-24"],
    "costly-cuts": ["1-3 | 99", "1-4 | 5-8 | 9-12 | 13-16"],
    "when-gpipe-wins": [13, "x"],
    "five-percent-idle": ["v-half, 8", "x"],
    "order-on-2": [ONE_F, "0B0,0F0 ; 1F0", "0F0 ; 0F1 ; 1F0", text("zb-v", 4, 4), 3.5],
    "shifted-by-one": [text("1f1b", 4, 8)],
    "everything-at-once": [EVEN + " ; gpipe", EVEN + " ; 1f1b", "1-6 | 3", EVEN + " ; nope", 3.5],
}


ONE_OF_A_KIND = """
    24-memory-cap when-gpipe-wins order-on-2 everything-at-once
"""


def test_more_actions_than_have_legible_numbers_are_drawn_without(monkeypatch):
    def numbers():  # 16 actions on each device
        axes = load_puzzle("everything-at-once").draw(EVEN + " ; gpipe").axes[0]
        return [text for text in axes.texts if text.get_gid() == "in-box"]

    assert numbers()
    monkeypatch.setattr(figures, "_LEGIBLE", 15)
    assert not numbers()


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "name",
    [
        n if n in ONE_OF_A_KIND.split() else pytest.param(n, marks=pytest.mark.slow)
        for n in puzzle_names()
    ],
)
def test_every_task_and_all_kinds_of_answers_are_drawn(name):
    puzzle = load_puzzle(name)
    for answer in [None, *ODD.get(name, [])]:
        figure = puzzle.draw(answer)
        title = figure.get_suptitle()
        assert title.startswith(puzzle.title)
        assert ("★" in title.splitlines()[0]) == bool(puzzle.check(answer).stars)
        assert ("\n" in title) or answer is None
        assert figure.axes


def gids(figure):
    return [str(a.get_gid()) for axes in figure.axes for a in axes.get_children()]


def test_the_drawing_shows_layers_limits_and_what_is_wrong():
    (axes,) = load_puzzle("24-uneven").draw("1-6 | 7-13 | 14-20 | 21-24").axes
    boxes = [p for p in axes.patches if str(p.get_gid()).startswith("layer ")]
    assert [p.get_gid() for p in boxes] == [f"layer {n}" for n in range(1, 25)]
    assert max(p.get_x() + p.get_width() for p in boxes) == 7
    (target,) = (line for line in axes.lines if line.get_gid() == "target")
    assert set(target.get_xdata()) == {7}
    assert not [g for g in gids(load_puzzle("24-uneven").draw(EVEN)) if "wrong l" in g]
    assert "wrong excess" in gids(load_puzzle("24-uneven").draw(EVEN))
    capped = load_puzzle("24-memory-cap").draw(EVEN)
    assert gids(capped).count("capacity") == 4
    assert gids(capped).count("wrong excess") == 2  # both heavy devices
    twice = load_puzzle("24-on-4").draw("1-6 | 6-12 | 13-18 | 19-23")
    assert {"wrong layer 6", "wrong layer 24"} <= set(gids(twice))
    assert "send" in gids(load_puzzle("costly-cuts").draw("1-4 | 5-8 | 9-12 | 13-16"))


def test_the_drawing_of_an_order_shows_its_memory():
    gpipe = load_puzzle("1f1b-by-hand").draw(text("gpipe", 3, 5))
    labels = [tick.get_text() for tick in gpipe.axes[0].get_yticklabels()]
    assert labels == [f"device {d}, keeps 5 of {room}" for d, room in enumerate((3, 2, 1), 1)]
