"""Answers that are placed: as text for the judge, kept, and moved in a real browser.

The browser's part needs chromium (``apt-get install chromium``); without it, it is skipped.
"""

import json
import re
import shutil
import subprocess
from html import unescape
from importlib import resources

import pytest

import tiledask as td
from tiledask.errors import ConfigError
from tiledask.lab.learner import kept

TYPED = ("choice", "composition")


@pytest.fixture
def notebook(monkeypatch, tmp_path):
    monkeypatch.setenv(kept.FOLDER, str(tmp_path))
    monkeypatch.setenv("JPY_SESSION_NAME", "07_cut.ipynb")
    monkeypatch.setattr(kept, "_open", {})


def test_what_is_placed_is_judged_as_text_and_stands_there_tomorrow(notebook, monkeypatch):
    puzzle = td.tasks.load_puzzle("24-on-4")
    answer = puzzle.place()
    assert not puzzle.check(answer).attempted
    answer.take("1-6 | 7-12 | 13-18 | 19-24")
    assert puzzle.check(answer).stars == 3
    assert puzzle.draw(answer)
    monkeypatch.setattr(kept, "_open", {})  # the next kernel
    assert puzzle.place().answer == answer.answer
    assert "run this cell in JupyterLab" in repr(answer)
    assert answer._repr_mimebundle_()["text/plain"] == repr(answer)


def test_every_cut_and_order_can_be_placed_and_the_others_say_that_they_are_typed():
    for puzzle in td.tasks.puzzle_levels():
        if puzzle.kind in TYPED or puzzle.inputs.get("place") == "free":
            with pytest.raises(ConfigError, match="type"):
                puzzle.place()
        else:
            assert json.loads(json.dumps(puzzle.place().setup))


# -- in a browser ----------------------------------------------------------------------------------

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
HEADLESS = ("--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=2000")
PAGE = """<!doctype html><meta charset="utf-8"><div id="el"></div><pre id="out"></pre>
<script type="module">
%s
const el = document.getElementById("el"), out = document.getElementById("out")
const say = (text) => { out.textContent += `${text}\\n` }
const state = %s
render({model: {get: (k) => state[k], set: (k, v) => { state[k] = v }, save_changes: () => {}}, el})
const press = (key) => new KeyboardEvent("keydown", {key, bubbles: true})
const key = (name) => document.activeElement.dispatchEvent(press(name))
const button = (label) => [...el.querySelectorAll("button")].find((b) => b.ariaLabel === label)
const status = () => say(el.querySelector("[role=status]").textContent)
try { %s } catch (error) { say(error.stack) }
</script>"""


def said(placed, tmp_path, script: str, answer: str = "") -> list[str]:
    """What ``script`` says of the page in which the answer is placed."""
    if CHROMIUM is None:
        pytest.skip("no chromium on this machine: apt-get install chromium")
    source = (resources.files("tiledask.lab.placing") / f"{placed.page}.js").read_text()
    source = source.replace("export default { render };", "")
    state = json.dumps({"setup": placed.setup, "answer": answer})
    page = tmp_path / "page.html"
    page.write_text(PAGE % (source, state, script))
    command = [CHROMIUM, *HEADLESS, "--dump-dom", page.as_uri()]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=120).stdout
    return unescape(re.search(r'<pre id="out">(.*?)</pre>', shown, re.DOTALL)[1]).splitlines()


def test_cuts_are_moved_by_keys_and_push_each_other(tmp_path):
    placed = td.tasks.load_puzzle("24-memory-cap").place()
    moved = """
    const [first, second, third] = el.querySelectorAll("[role=slider]")
    for (const [cut, times] of [[third, 5], [second, 3], [first, 1]])
      for (let i = 0; i < times; i++) { cut.focus(); key("PageUp") }
    say(state.answer)
    say(second.getAttribute("aria-valuetext"))
    third.focus()
    for (let i = 0; i < 4; i++) key("PageDown")
    say(state.answer)
    status()
    say(el.querySelector(".over").innerText.replaceAll("\\t", ", "))"""
    assert said(placed, tmp_path, moved) == [
        "1-4 | 5-11 | 12-18 | 19-24",
        "after layer 11; device 2 takes 7, device 3 takes 7",
        "1-4 | 5-6 |  | 7-24",
        "slowest: device 4, 18 (at most 7)",
        "device 4, 7-24, takes 18, holds 21 of 8 GB",
    ]


def test_an_order_is_placed_by_keys_and_by_clicks_and_taken_back(tmp_path):
    puzzle = td.tasks.load_puzzle("1f1b-by-hand")
    placed = """
    button("device 1: 0F0 next").click()
    key("f"); key("f"); key("ArrowDown"); key("F")
    say(state.answer)
    button("0F0 from 0 to 1 s: take back").click()
    say(state.answer)"""
    # with what it fed
    assert said(puzzle.place(), tmp_path, placed) == ["0F0,0F1,0F2; 1F0; ", "0F1,0F2; ; "]


@pytest.mark.parametrize("name", ["order-with-latency", "v-by-hand"])
def test_the_page_simulates_what_the_simulator_does(name, tmp_path):
    puzzle = td.tasks.load_puzzle(name)
    end = puzzle.result(puzzle.solve()).targets[0].got
    (status,) = said(puzzle.place(), tmp_path, "status()", puzzle.solve())
    assert re.search(rf"(\d+) of \1 placed, ends after {end:g} s", status)
