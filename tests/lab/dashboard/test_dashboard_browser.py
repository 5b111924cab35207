"""The page and its file in a real browser: what a person sees, and no error in its console.

Needs Playwright for Python (``pip install playwright``) and Debian's chromium (``apt-get install
chromium``); without them the tests are skipped.
"""

import io
import shutil
from contextlib import contextmanager

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.image import imread

import tiledask as td
from tiledask.distributed.pipelines.stages import stack
from tiledask.lab.plots.style import BLUE, ORANGE, PALE, RED

playwright = pytest.importorskip(
    "playwright.sync_api", reason="Playwright is not installed: pip install playwright"
)
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium here: apt-get install chromium"),
]


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@contextmanager
def looked_at(browser, url: str, width: int, offline: bool = False):
    """A page in which nothing goes wrong while it is looked at, and what it asked for."""
    context = browser.new_context(viewport={"width": width, "height": 900})
    page, errors, asked = context.new_page(), [], []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
    page.on("request", lambda request: asked.append(request.url))
    context.set_offline(offline)
    page.goto(url)
    page.wait_for_selector(".bk-Figure:visible", timeout=240_000)
    yield page, asked
    assert errors == []
    context.close()


def check(page, words: list[str], colours: list[str]) -> None:
    """The words can be read soon, some of the page has each colour, and all fits across."""
    for each in words:
        page.get_by_text(each, exact=True).first.wait_for(timeout=240_000)
    page.wait_for_timeout(600)
    pixels = imread(io.BytesIO(page.screenshot()))[..., :3]
    for colour in colours:
        assert (np.abs(pixels - to_rgb(colour)).max(axis=-1) < 0.02).mean() > 0.005
    root = "document.documentElement"
    assert page.evaluate(f"{root}.scrollWidth <= {root}.clientWidth")


def pipeline(cluster) -> None:
    batch = np.random.default_rng(0).standard_normal((12, 12))
    stages, paced = stack((0, 1, 2, 3), width=12, hidden=20), {"forward": 0.08, "backward": 0.16}
    td.run_schedule(td.schedule("1f1b", 3, 6), stages, batch, cluster, target=batch, **paced)


def product(cluster) -> None:
    mesh = td.Mesh(cluster, (2, 2))
    A = td.distribute(np.ones((512, 512), "f4"), mesh, (td.Shard(0), td.Shard(1)))
    td.matmul(A, A, algorithm="summa", panel=32)


def training(cluster) -> None:
    text, mesh = td.load_text("tales"), td.Mesh(cluster, (1, 2, 2))
    model = td.GPT(text.vocabulary, hidden=16, layers=3, heads=4, sequence=16)
    td.train(model, text, mesh, steps=20, batch=8, microbatches=2, progress=False)


WORK = {  # what an open page reads then, and which colours are seen
    "pipeline": (pipeline, ["36 of 36", "25.0 %"], [BLUE, ORANGE, PALE]),
    "product": (product, ["bytes between workers"], [RED, PALE]),
    "training": (training, ["20 of 20", "dp 1, tp 2, pp 2"], []),
}


@pytest.mark.parametrize("what", WORK)
@pytest.mark.parametrize(("name", "width"), [("tiledask", 1400), ("individual-tiledask", 800)])
def test_work_is_drawn_on_an_open_page(browser, cluster, what, name, width):
    work, reads, colours = WORK[what]
    url = f"{cluster.dashboard_link.removesuffix('/status')}/{name}"
    with looked_at(browser, url, width) as (page, _):
        work(cluster)
        check(page, reads, colours)


def test_a_file_is_looked_at_without_a_network(browser, cluster, tmp_path):
    pipeline(cluster)
    path = td.report(tmp_path / "run.html", cluster)
    with looked_at(browser, path.as_uri(), 800, offline=True) as (page, asked):
        check(page, ["number in a box: the micro-batch"], [ORANGE])
        assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []
