"""JupyterLab as `make lab` opens it, in a real browser: a learner's first ten minutes.

Needs Playwright for Python (``pip install playwright``) and a Chromium: Debian's (``apt-get install
chromium``), or the one that CHROMIUM names. Without them the test is skipped.
"""

import contextlib
import io
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from oracles.finished import ROOT, finished
from oracles.waiting import wait_until

from tiledask.lab.learner.kept import Kept

playwright = pytest.importorskip(
    "playwright.sync_api", reason="Playwright is not installed: pip install playwright"
)
NAMED = os.environ.get("CHROMIUM", "chromium")
CHROMIUM = next(filter(None, map(shutil.which, (NAMED, "chromium-browser"))), None)

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.slow,
    pytest.mark.skipif(
        CHROMIUM is None, reason="no chromium on this machine: apt-get install chromium"
    ),
]

PATIENCE = 240_000
"""Milliseconds that anything may take on a busy machine."""
TOKEN = "a-token-of-this-test"
READY = """() => {
    const kernel = jupyterapp.shell.currentWidget?.sessionContext?.session?.kernel
    return kernel?.connectionStatus == "connected" && kernel.status == "idle"
}"""
RUN = """([source, changed]) => {
    const {content} = jupyterapp.shell.currentWidget
    const models = content.widgets.map((cell) => cell.model.sharedModel)
    const found = models.findIndex((model) => model.getSource().includes(source))
    content.activeCellIndex = found
    if (changed) models[found].setSource(changed)
    jupyterapp.commands.execute("notebook:run-cell")
    return found
}"""
"""Runs the first cell that has ``source``; does not wait, as nothing here may wait for ever."""
IDLE = """() => {
    const prompts = [...document.querySelectorAll(".jp-InputPrompt")]
    return !prompts.some((prompt) => prompt.innerText == "[*]:")
}"""
CELLS = "() => jupyterapp.shell.currentWidget.content.widgets.map((cell) => cell.model.type)"
ACTIVE = """() => {
    const {content} = jupyterapp.shell.currentWidget
    return [content.activeCellIndex, content.mode]
}"""
FRESH = """() => {
    const fields = [...document.querySelectorAll(".tiledask-field input, .tiledask-field select")]
    return fields.filter((field) => !field.value).length
}"""
PREDICTS = """(nth) => {
    const {content} = jupyterapp.shell.currentWidget
    const asks = (cell) => cell.model.sharedModel.getSource().includes("td.predict(")
    const cell = content.widgets.filter(asks)[nth]
    content.activeCellIndex = content.widgets.indexOf(cell)
    content.mode = "command"
    cell.node.focus()
    return content.activeCellIndex
}"""
"""Goes to the cell with the ``nth`` prediction, as the arrow keys would."""
PANEL = "iframe[src*=individual-tiledask]"


@pytest.fixture
def checkout(tmp_path):
    """A repository with what `make lab` needs of this one."""
    for name in ("Makefile", ".gitignore"):
        shutil.copy(ROOT / name, tmp_path)
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    who = ("-c", "user.name=a", "-c", "user.email=a@b.c")
    git(tmp_path, *who, "commit", "--quiet", "--message", "all")
    return tmp_path


def git(folder: Path, *words: str) -> str:
    clean = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    done = finished("git", *words, cwd=folder, env=clean)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def lab(checkout, tmp_path_factory):
    """The address of JupyterLab, started in ``checkout`` by `make lab`."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    arguments = f"--no-browser --ServerApp.port={port} --ServerApp.port_retries=0"
    own = tmp_path_factory.mktemp("jupyter")  # and not what this machine's user has
    environment = {key: value for key, value in os.environ.items() if key != "MAKEFLAGS"}
    environment |= {name: str(own / name) for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR")}
    environment |= {"JUPYTERLAB_SETTINGS_DIR": str(own / "s"), "IPYTHONDIR": str(own / "i")}
    log = own / "log"
    with log.open("w") as said:
        started = subprocess.Popen(
            [
                *("make", "USED_STAMP=", f"BIN={Path(sys.executable).parent}", "lab"),
                *("DASHBOARD_PORT=0", f"LAB_ARGS={arguments} --IdentityProvider.token={TOKEN}"),
            ],
            cwd=checkout,
            env=environment | {"PYTHONPATH": str(ROOT)},
            stdout=said,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        wait_until(lambda: answers(port), f"JupyterLab to start: {log}")
        yield f"http://127.0.0.1:{port}/lab?token={TOKEN}"
    finally:
        # Lab ends its kernels, and they their clusters
        with contextlib.suppress(ProcessLookupError):
            os.killpg(started.pid, signal.SIGTERM)
        started.wait(240)


def answers(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture
def page(lab):
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"]
        )
        page = browser.new_page(viewport={"width": 1366, "height": 768})
        page.set_default_timeout(PATIENCE)
        page.goto(lab)
        yield page
        browser.close()


def run(page, source: str, changed: str = "") -> None:
    """Run the first cell that has ``source``, or what it is ``changed`` to."""
    assert page.evaluate(RUN, [source, changed]) >= 0
    page.wait_for_timeout(300)
    page.wait_for_function(IDLE)


def is_dirty(page) -> bool:
    return page.evaluate("jupyterapp.shell.currentWidget.context.model.dirty")


def wait_drawn(page) -> None:
    """Return once lanes of workers take a part of the panel: it may be there and blank."""
    from matplotlib.image import imread

    def drawn() -> bool:
        page.wait_for_timeout(500)
        pixels = imread(io.BytesIO(page.locator(PANEL).screenshot()))[..., :3]
        return float((pixels.min(axis=-1) < 0.95).mean()) > 0.1

    wait_until(drawn, "the page in the panel to be drawn")


def test_the_first_ten_minutes_of_a_learner(page, checkout):
    learn = checkout / "learn"

    # the contents at the left, with picture and time; the panel at its right, without a cluster yet
    page.get_by_role("heading", name="Split large models over devices").wait_for()
    picture = page.locator("img[alt='Which walkthrough builds on which']")
    picture.wait_for()
    assert picture.evaluate("(image) => image.naturalWidth") > 500
    page.locator(".dask-DaskDashboard-inactive").wait_for()
    assert page.locator(PANEL).count() == 0
    page.get_by_text("Begin with").wait_for()

    # a walkthrough opens beside it, and opening changes nothing
    page.get_by_role("link", name="03 Split one product").click()
    page.wait_for_function(READY)
    page.wait_for_timeout(2500)
    assert not is_dirty(page)

    # the panel shows the cluster as soon as there is one, at whatever port
    run(page, "import numpy")
    run(page, "td.start_cluster(")
    page.locator(PANEL).wait_for()
    address = page.locator("[data-dashboard]").get_attribute("data-dashboard")
    assert page.locator(PANEL).get_attribute("src") == f"{address}/individual-tiledask"
    inside = page.frame_locator(PANEL)
    inside.get_by_text("Nothing has run yet").wait_for()

    # a prediction is typed, and judged beside what came
    run(page, "td.predict(")
    page.locator(".tiledask-field input").first.fill("8 MB")
    page.get_by_text("kept: 8,000,000 B").wait_for()
    run(page, "rng = ")
    run(page, "guess.beside(")
    page.get_by_role("cell", name="8,000,000 B").first.wait_for()

    # a field that comes as its cell is run by keyboard takes what is typed next; Enter goes on
    shape = page.evaluate(CELLS)
    for question, keys, kept in ((1, "00", "kept: 0 B"), (2, "12", "kept: 12 B")):
        cell = page.evaluate(PREDICTS, question)
        page.keyboard.press("Shift+Enter")
        page.wait_for_function("() => document.activeElement.closest('.tiledask-field')")
        page.keyboard.type(keys)
        page.get_by_text(kept).wait_for()
        page.keyboard.press("Enter")
        assert page.evaluate(ACTIVE) == [cell + 1, "command"]

    # the first row, run again, is about its own question
    run(page, "guess.beside(")
    page.get_by_role("cell", name="judged as at first").wait_for()
    page.get_by_role("cell", name="8,000,000 B").first.wait_for()

    # and nothing takes the focus under Run All, wherever the reader looks meanwhile
    page.evaluate(PREDICTS, 5)
    page.evaluate("() => { jupyterapp.commands.execute('notebook:run-all-above'); return 1 }")
    page.evaluate(PREDICTS, 3)
    page.keyboard.press("ArrowDown")
    page.wait_for_timeout(300)
    page.wait_for_function(IDLE)
    page.wait_for_timeout(1000)
    assert page.evaluate(FRESH) >= 2
    assert not page.evaluate("() => Boolean(document.activeElement.closest('.tiledask-field'))")
    assert page.evaluate(CELLS) == shape
    address = page.locator("[data-dashboard]").get_attribute("data-dashboard")

    # the page in the panel follows the work, also after it was hidden and shown again
    run(page, "td.distribute(")
    inside.get_by_text("Product of").wait_for()
    wait_drawn(page)
    for mode in ("single-document", "multiple-document"):
        page.evaluate(f"() => {{ jupyterapp.shell.mode = '{mode}'; return 1 }}")
        page.wait_for_timeout(500)
    wait_drawn(page)

    # closed, it comes back by the button
    page.evaluate("""() => {
        const panel = [...jupyterapp.shell.widgets("main")].find((w) => /^dask-/.test(w.id))
        panel.close()
        return 1
    }""")
    page.locator(PANEL).wait_for(state="detached")
    page.get_by_role("button", name="Show the dashboard page").click()
    inside.get_by_text("Product of").wait_for()

    # the next cluster is followed, also when an answer about the one before is late
    late = []
    page.route(
        f"**/dashboard-check/*{address.rpartition(':')[2]}*", lambda asked: late.append(asked)
    )
    for _ in range(60):  # JupyterLab asks every few seconds
        page.wait_for_timeout(0 if late else 500)
    page.locator(".lm-TabBar-tab", has_text="03_split_one_product").click()
    run(page, "td.start_cluster(", "cluster = td.start_cluster(workers=2, replace=True)")
    newer = page.locator("[data-dashboard]").get_attribute("data-dashboard")
    assert newer != address
    page.locator(f"iframe[src='{newer}/individual-tiledask']").wait_for()
    assert late
    for answer in late:
        answer.continue_()
    page.locator(".dask-DaskDashboard-inactive").wait_for()
    page.locator(f"iframe[src='{newer}/individual-tiledask']").wait_for()

    # the score is on the contents page at once
    run(page, "td.score()")
    page.locator(".lm-TabBar-tab", has_text="contents.md").click()
    page.get_by_role("cell", name="3 of 7").wait_for()
    page.get_by_text("Go on with").wait_for()

    # a puzzle is placed, by keyboard and by mouse, and its letters are no commands of JupyterLab
    page.get_by_role("link", name="14 Cut 24 layers").click()
    page.wait_for_function(READY)
    run(page, "import tiledask as td")
    place = 'puzzle = td.tasks.load_puzzle("24-on-4")\nanswer = puzzle.place()\nanswer'
    run(page, 'load_puzzle("24-uneven")', place)
    page.get_by_role("slider").nth(2).wait_for()
    first, second, third = page.get_by_role("slider").all()
    for handle, pages in ((third, 5), (second, 3), (first, 2)):
        handle.focus()
        for key in ["PageUp"] * pages:
            page.keyboard.press(key)
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("d")
    page.keyboard.press("d")
    bars = page.locator(".tiledask-bars").bounding_box()
    for handle, after in ((first, 6), (second, 12)):
        box = handle.bounding_box()
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 20)
        page.mouse.down()
        page.mouse.move(bars["x"] + bars["width"] * after / 24, box["y"] + 20, steps=5)
        page.mouse.up()
    page.get_by_role("status").get_by_text("slowest: device 0, 6").wait_for()
    run(page, "puzzle.check(answer)")
    page.get_by_text("★★★ as good as can be").wait_for()

    # what was done is saved in the learner's folder, and nowhere else
    page.locator(".lm-TabBar-tab", has_text="03_split_one_product").click()
    page.evaluate("() => { jupyterapp.commands.execute('docmanager:save'); return 1 }")
    page.wait_for_function("() => !jupyterapp.shell.currentWidget.context.model.dirty")
    saved = json.loads((learn / "03_split_one_product.ipynb").read_text())
    assert any(cell.get("outputs") for cell in saved["cells"])
    kept = Kept("03", learn / ".progress" / "03_split_one_product.jsonl")
    assert kept.get("bytes of A")["value"] == 8e6
    assert git(checkout, "status", "--porcelain") == ""
