"""The ladder drawn, and in a terminal: what is off is marked, and nothing tells the answer."""

import json
import re

import pytest

import tiledask as td
from tiledask.cli import main
from tiledask.lab.idle_ladder.ladder import LEVELS
from tiledask.lab.learner.kept import TASKS, here
from tiledask.lab.plots.pipelines.gantt import IDLE
from tiledask.lab.tasks.terminal import _letters


def worked(task):
    return task.lines[-1].removeprefix("Answer: ")


def said(figure, gid=None):
    """The words in a figure, or those of one mark."""
    texts = [t for axes in figure.axes for t in axes.texts]
    return [t.get_text() for t in texts if gid in (None, t.get_gid())]


@pytest.mark.few(3)
@pytest.mark.parametrize("number", LEVELS)
def test_every_level_is_drawn_empty_wrong_and_right(number):
    task, stale = td.tasks.idle_level(number, 5), td.tasks.idle_level(number, 6)
    for answer in (None, "x", worked(stale), worked(task)):
        figure = task.draw(answer)
        assert figure.to_png()[:4] == b"\x89PNG"
        assert figure.axes[0].get_yticklabels()[0].get_text()
    assert task.draw(None).axes[0].get_yticklabels()[0].get_text() != "device 0"


def marked(figure):
    """What is framed, or written in red."""
    frames = [p.get_gid() for axes in figure.axes for p in axes.patches]
    return [gid for gid in frames if str(gid).startswith("wrong")] + said(figure, "wrong")


def test_what_is_off_is_marked_in_its_place():
    task = td.tasks.idle_level(1, 5)
    rows = [list(row) for row in task.sheet.right]
    assert marked(task.draw(rows)) == []
    rows[1][-1] = "B0" if rows[1][-1] != "B0" else "F0"
    figure = task.draw(rows)
    assert marked(figure) == [f"wrong slot {task.sheet.slots}"]
    (frame,) = (p for p in figure.axes[0].patches if p.get_gid() == marked(figure)[0])
    assert (frame.get_x(), round(frame.get_y())) == (task.sheet.slots - 1, 1)

    task = td.tasks.idle_level(3, 5)
    right = task.runs[0].timeline.idle_per_device
    figure = task.draw([right[0], right[1] + 1, *right[2:]])
    (words,) = marked(figure)
    (mark,) = (t for t in figure.axes[0].texts if t.get_gid() == "wrong")
    assert mark.get_position()[1] == 1
    assert words == f"not {right[1] + 1:g} s: too high, near"
    assert not [
        t for t in said(figure) if re.search(rf"\b{right[1]:g} s", t) and right[1] != right[0]
    ]


def test_the_empty_sheet_hides_the_run():
    for number in (3, 7, 10, 12):
        task = td.tasks.idle_level(number, 5)
        assert set(said(task.draw(None))) == {"?"}
        assert set(said(task.draw("1"))) == {"?"}


def test_gaps_have_their_letters_and_the_first_wrong_one_is_red():
    task = td.tasks.idle_level(11, 5)
    letters = [f"gap {letter}" for letter in "ABCDE"]
    assert [t.get_gid() for t in task.draw(None).axes[0].texts if t.get_gid() in letters] == letters
    words = [part.split()[1] for part in worked(task).split(", ")]
    words[2] = "drain" if words[2] != "drain" else "warm-up"
    boxes = {t.get_gid(): t for t in task.draw(words).axes[0].texts}
    red = [gid for gid in letters if boxes[gid].get_color() == "white"]
    assert red == ["gap C"]


# -- in a terminal -------------------------------------------------------------------------------


def run(capsys, *words):
    code = main(["puzzle", *words, "--json"])
    return code, json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("number", LEVELS)
def test_a_level_is_shown_and_judged_in_a_terminal(capsys, number):
    task = td.tasks.idle_level(number, 7)
    answer = worked(task)
    name = f"idle-{number}"
    here().put(name, TASKS, hints=0, solved=False)
    assert main(["puzzle", name, "--seed", "7"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert task.question in shown
    assert f"Level {name}, seed 7: {task.title}" in shown
    assert f"Answer: {answer}" not in shown
    code, wrong = run(capsys, name, "--seed", "7", "--answer", "x")
    assert (code, "working" in wrong) == (1, False)
    code, right = run(capsys, name, "--seed", "7", "--answer", answer)
    assert (code, right["results"][0]["stars"]) == (0, 3)
    assert right["working"][-1] == f"Answer: {answer}"


def test_hints_one_by_one_lead_to_the_working(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    for number in (1, 2, 3):
        assert main(["puzzle", "idle-4", "--hint"]) == 0
        shown = " ".join(capsys.readouterr().out.split())
        assert f"Hint {number} of 3" in shown
        assert ("Answer: " in shown) == (number == 3)
    assert "worker 1 F" in shown
    assert f"Answer: {worked(td.tasks.idle_level(4))}" in shown


def test_a_run_too_long_for_letters_is_told_in_a_line_per_worker():
    told = set()
    for number in LEVELS:
        for each in (run for seed in range(4) for run in td.tasks.idle_level(number, seed).runs):
            run, text = each.timeline, _letters(each)
            *rows, last = text.splitlines()
            assert len(rows) == run.devices
            if "at work" not in text:
                words = re.findall(r"[FB][0-9-]*", "".join(row[10:] for row in rows))
                assert sum(len(word) < 2 for word in words) <= len(words) / 2, text
                continue
            told.add(number)
            assert last.endswith(
                f"{run.makespan:g} s, too long for letters; --figure FILE draws it"
            )
            idle = [float(re.search(r"(\S+) s idle", row)[1]) for row in rows]
            assert idle == pytest.approx(list(run.idle_per_device), rel=1e-5)
            m = 1 + run.microbatch.max()
            assert all(f"forwards {m}, backwards {m}: " in row for row in rows)
    assert {8, 9} <= told
    assert not {1, 2, 3, 4} & told


def test_requests_that_make_no_sense(capsys):
    for words, why in (
        ((["idle-13"]), "levels 1 to 12, got 13"),
        ((["4", "--seed", "3"]), "a seed draws the numbers of idle-1 to idle-12, not of '4'"),
        ((["idle-3", "--seed", "-1"]), "seed must be a whole number of 0 or more"),
    ):
        assert main(["puzzle", *words]) == 2
        assert why in " ".join(capsys.readouterr().err.split())


def test_gaps_look_alike_until_all_of_them_are_named():
    task = td.tasks.idle_level(11)
    right = worked(task)
    other = right.replace("imbalance", "transfer")
    for answer, alike in ((None, True), (other, True), (right, False)):
        figure = task.draw(answer)
        idle = [b for b in figure.axes[0].collections if b.get_gid() in IDLE]
        assert ({b.get_hatch() for b in idle} == {None}) is alike
        assert [t for t in figure.axes[0].texts if "gap" in str(t.get_gid())]
