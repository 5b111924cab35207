"""Cuts that are placed: as text for the judge, kept, and moved in a real browser.

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


def test_cuts_can_be_placed_and_the_others_say_that_they_are_typed():
    for puzzle in td.tasks.puzzle_levels():
        if puzzle.kind == "partition":
            assert json.loads(json.dumps(puzzle.place().setup))
        else:
            with pytest.raises(ConfigError, match="typed"):
                puzzle.place()


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
try { %s } catch (error) { say(error.stack) }
</script>"""


def test_cuts_are_moved_by_keys_and_push_each_other(tmp_path):
    if CHROMIUM is None:
        pytest.skip("no chromium on this machine: apt-get install chromium")
    moved = """
    const [first, second, third] = el.querySelectorAll("[role=slider]")
    for (const [cut, times] of [[third, 5], [second, 3], [first, 1]])
      for (let i = 0; i < times; i++) { cut.focus(); key("PageUp") }
    say(state.answer)
    say(second.getAttribute("aria-valuetext"))
    third.focus()
    for (let i = 0; i < 4; i++) key("PageDown")
    say(state.answer)
    say(el.querySelector("[role=status]").textContent)
    say(el.querySelector(".over").innerText.replaceAll("\\t", ", "))"""
    source = (resources.files("tiledask.lab.judging") / "cuts.js").read_text()
    state = {"setup": td.tasks.load_puzzle("24-memory-cap").place().setup, "answer": ""}
    page = tmp_path / "page.html"
    source = source.replace("export default { render };", "")
    page.write_text(PAGE % (source, json.dumps(state), moved))
    command = [CHROMIUM, *HEADLESS, "--dump-dom", page.as_uri()]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=120).stdout
    said = unescape(re.search(r'<pre id="out">(.*?)</pre>', shown, re.DOTALL)[1]).splitlines()
    assert said == [
        "1-4 | 5-11 | 12-18 | 19-24",
        "after layer 11; device 2 takes 7, device 3 takes 7",
        "1-4 | 5-6 |  | 7-24",
        "slowest: device 4, 18 (at most 7)",
        "device 4, 7-24, takes 18, holds 21 of 8 GB",
    ]
