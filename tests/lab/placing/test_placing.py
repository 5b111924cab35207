"""Answers that are placed: as text for the judge, kept, and moved in a real browser.

Holds `tiledask.lab.placing.placed`. The browser's part needs
Playwright for Python (``pip install playwright``) and Debian's chromium (``apt-get install
chromium``); without them it is skipped.
"""

import json
import shutil
from importlib import resources

import pytest

import tiledask as td
from tiledask.errors import ConfigError
from tiledask.lab.learner import kept
from tiledask.lab.placing import PlacedAnswer

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

PAGE = """
<style>%s</style><div id="el"></div>
<script type="module">
%s
const state = %s
window.model = {get: (k) => state[k], set: (k, v) => { state[k] = v }, save_changes: () => {}}
render({model, el: document.getElementById("el")})
</script>
"""


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="Playwright is not installed: pip install playwright"
    )
    if CHROMIUM is None:
        pytest.skip("no chromium on this machine: apt-get install chromium")
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture
def opened(browser):
    """Opens what is placed in a page, without an error; the answer is what the page says."""
    pages, errors = [], []

    def show(placed: PlacedAnswer):
        room = resources.files("tiledask.lab.placing")
        state = {"setup": placed.setup, "answer": placed.answer or ""}
        script = (room / f"{placed.page}.js").read_text().replace("export default { render };", "")
        page = browser.new_page(viewport={"width": 900, "height": 420})
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.set_content(PAGE % ((room / "placing.css").read_text(), script, json.dumps(state)))
        pages.append(page)
        return page

    yield show
    for page in pages:
        page.close()
    assert errors == []


def said(page) -> str:
    return page.evaluate("window.model.get('answer')")


def test_cuts_are_moved_by_keyboard_and_by_mouse(opened):
    puzzle = td.tasks.load_puzzle("24-on-4")
    page = opened(puzzle.place())
    first, second, third = page.get_by_role("slider").all()
    for handle, presses in ((third, 5), (second, 3), (first, 1)):  # by 3, then by 1
        handle.focus()
        for _ in range(presses):
            page.keyboard.press("PageUp")
    assert said(page) == "1-4 | 5-11 | 12-18 | 19-24"
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowUp")
    box, bars = second.bounding_box(), page.locator(".tiledask-bars").bounding_box()
    page.mouse.move(box["x"] + 7, box["y"] + 40)
    page.mouse.down()
    page.mouse.move(bars["x"] + bars["width"] / 2, box["y"] + 40, steps=4)
    page.mouse.up()
    assert second.get_attribute("aria-valuetext") == (
        "after layer 12; device 2 takes 6, device 3 takes 6"
    )
    assert puzzle.check(said(page)).stars == 3
    third.focus()
    for _ in range(3):  # past the second, which is pushed along
        page.keyboard.press("PageDown")
    assert said(page) == "1-6 | 7-9 |  | 10-24"
    assert "device 4, 15 (at most 6)" in page.get_by_role("status").inner_text()
    assert not puzzle.check(said(page))


def test_an_order_is_placed_by_keys_and_by_clicks_and_taken_back(opened):
    puzzle = td.tasks.load_puzzle("1f1b-by-hand")
    page = opened(puzzle.place())
    page.get_by_role("button", name="device 1: 0F0 next").click()
    for _ in range(2):
        page.keyboard.press("f")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("F")
    assert said(page) == "0F0,0F1,0F2; 1F0; "
    page.get_by_role("button", name="0F0 from 0 to 1 s: take back").click()
    assert said(page) == "0F1,0F2; ; "  # with what it fed
    placed = puzzle.place()
    placed.answer = puzzle.solve()
    done = opened(placed)
    assert "30 of 30 placed, ends after 21 s (wanted: 21 s)" in done.content()


@pytest.mark.parametrize("name", ["order-with-latency", "uneven-stages", "v-by-hand"])
def test_the_page_simulates_what_the_simulator_does(opened, name):
    puzzle = td.tasks.load_puzzle(name)
    placed = puzzle.place()
    placed.answer = puzzle.solve().replace("\n", "; ")
    run = td.simulate(
        td.Schedule.from_text(placed.answer),
        **{k: v for k, v in puzzle.inputs.items() if k.startswith(("forward", "back", "latency"))},
    )
    assert f"ends after {run.makespan:g} s" in opened(placed).get_by_role("status").inner_text()
