"""The page and its file in a real browser: what a person sees, and no error in its console.

Needs Playwright for Python (``pip install playwright``) and Debian's chromium (``apt-get install
chromium``); without them the tests are skipped.
"""

import io
import shutil
import threading
from contextlib import contextmanager

import numpy as np
import pytest

import tiledask as td
from tiledask.distributed.pipelines.stages import stack
from tiledask.lab.plots.style import BLUE, ORANGE, PALE, RED

playwright = pytest.importorskip(
    "playwright.sync_api", reason="Playwright is not installed: pip install playwright"
)
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(
        CHROMIUM is None, reason="no chromium on this machine: apt-get install chromium"
    ),
]

FITTING = """() => {
    const models = [...Bokeh.documents[0]._all_models.values()]
    const filter = models.find((m) => m.type == "CustomJSFilter")
    const boxes = models.find((m) => m.type == "GlyphRenderer" && m.view.filter == filter)
    return [filter.compute_indices(boxes.data_source).count, boxes.data_source.length]
}"""
"""In the browser: (texts that fit their boxes, boxes)."""

ZOOM = """() => {
    const models = [...Bokeh.documents[0]._all_models.values()]
    const filter = models.find((m) => m.type == "CustomJSFilter")
    const boxes = models.find((m) => m.type == "GlyphRenderer" && m.view.filter == filter)
    const {left, right} = boxes.data_source.data
    filter.args.x.setv({start: left[0], end: right[0]})
}"""
"""In the browser: show the first box alone."""


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


class Look:
    """A page in which nothing goes wrong while it is looked at, and what it asked for."""

    def __init__(self, browser, url: str, width: int, height: int = 700, offline: bool = False):
        self.context = browser.new_context(viewport={"width": width, "height": height})
        self.page = self.context.new_page()
        self.errors: list[str] = []
        self.asked: list[str] = []
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on(
            "console", lambda said: self.errors.append(said.text) if said.type == "error" else None
        )
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.context.set_offline(offline)
        self.page.goto(url)
        self.page.wait_for_selector(".bk-Figure:visible", timeout=240_000)

    def __enter__(self) -> "Look":
        return self

    def __exit__(self, kind, *_) -> None:
        assert kind or self.errors == []
        self.context.close()

    def reads(self, words: str) -> None:
        """Wait until ``words`` can be read."""
        self.page.get_by_text(words, exact=True).first.wait_for(timeout=240_000)

    def share(self, colour: str) -> float:
        """The share of the page that has ``colour``."""
        from matplotlib.image import imread

        self.page.wait_for_timeout(600)
        pixels = imread(io.BytesIO(self.page.screenshot()))[..., :3]
        wanted = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        return float((np.abs(pixels - wanted).max(axis=-1) < 0.02).mean())

    def scrolls_sideways(self) -> bool:
        root = "document.documentElement"
        return self.page.evaluate(f"{root}.scrollWidth > {root}.clientWidth")


def pipeline(cluster, seconds: float | None = 0.08) -> None:
    batch = np.random.default_rng(0).standard_normal((12, 12))
    paced = {} if seconds is None else {"forward": seconds, "backward": 2 * seconds}
    stages = stack((0, 1, 2, 3), width=12, hidden=20)
    td.run_schedule(td.schedule("1f1b", 3, 6), stages, batch, cluster, target=batch, **paced)


@contextmanager
def running(work):
    """``work()`` again and again meanwhile: a browser on a busy machine can miss one."""
    over = threading.Event()

    def repeat() -> None:
        for _ in range(20):
            work()
            if over.is_set():
                return

    thread = threading.Thread(target=repeat)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def page_of(cluster, name: str) -> str:
    return f"{cluster.dashboard_link.removesuffix('/status')}/{name}"


@pytest.mark.parametrize(("name", "width"), [("tiledask", 1600), ("individual-tiledask", 800)])
def test_a_pipeline_is_drawn_while_it_runs(browser, cluster, name, width):
    with Look(browser, page_of(cluster, name), width) as look:
        with running(lambda: pipeline(cluster)):
            look.reads("makespan so far")
            look.reads("predicted idle share")
        for words in ("36 of 36", "1f1b", "25.0 %"):  # predicted: (3 - 1) / (6 + 3 - 1)
            look.reads(words)
        assert look.share(BLUE) > 0.02
        assert look.share(ORANGE) > 0.04
        assert look.share(PALE) > 0.01
        assert look.page.evaluate(FITTING) == [36, 36]
        assert not look.scrolls_sideways()


def test_numbers_that_do_not_fit_are_left_out_and_come_with_a_zoom(browser, cluster):
    pipeline(cluster, None)
    with Look(browser, page_of(cluster, "individual-tiledask"), 420) as look:
        look.reads("36 of 36")
        shown, boxes = look.page.evaluate(FITTING)
        assert boxes == 36
        assert shown < 30
        look.page.evaluate(ZOOM)
        assert look.page.evaluate(FITTING)[0] > shown


def test_a_product_is_drawn(browser, cluster):
    with Look(browser, page_of(cluster, "tiledask"), 1200) as look:
        mesh = td.Mesh(cluster, (2, 2))
        A = td.distribute(np.ones((512, 512), "f4"), mesh, (td.Shard(0), td.Shard(1)))
        td.matmul(A, A)
        look.reads("algorithm")
        with running(lambda: td.matmul(A, A, algorithm="summa", panel=32)):
            look.reads("bytes between workers")
        assert look.share(RED) > 0.02  # the bytes that were read
        assert not look.scrolls_sideways()


@pytest.mark.parametrize("hidden", ["style.display = 'none'", "style.width = style.height = 0"])
def test_a_page_that_was_hidden_while_something_ran_is_whole_when_it_is_seen_again(
    browser, cluster, hidden
):
    """As JupyterLab does with a tab behind another one."""
    url = page_of(cluster, "individual-tiledask")
    framed = f"<iframe id=tab src='{url}' style='width: 700px; height: 600px; border: 0'></iframe>"
    mesh = td.Mesh(cluster, (2, 2))
    A = td.distribute(np.ones((512, 512), "f4"), mesh, (td.Shard(0), td.Shard(1)))
    with Look(browser, url, 760) as look:
        look.page.set_content(framed)
        look.page.frame_locator("#tab").locator(".bk-Figure:visible").first.wait_for()
        shown = look.page.evaluate("tab.style.cssText")
        look.page.evaluate(f"{{ const style = tab.style; {hidden} }}")
        td.matmul(A, A, algorithm="summa")  # another board than the one that was seen
        look.page.wait_for_timeout(1000)
        assert look.share(PALE) < 0.001
        look.page.evaluate("shown => { tab.style.cssText = shown }", shown)
        assert look.share(RED) > 0.02
        assert look.share(PALE) > 0.01


@pytest.mark.parametrize(("name", "width"), [("tiledask", 1400), ("individual-tiledask", 700)])
def test_a_training_is_drawn_while_it_runs(browser, cluster, name, width):
    text, mesh = td.load_text("tales"), td.Mesh(cluster, (1, 2, 2))
    model = td.GPT(text.vocabulary, hidden=16, layers=3, heads=4, sequence=16)
    options = {"steps": 20, "batch": 8, "microbatches": 2, "progress": False}
    with Look(browser, page_of(cluster, name), width, 900) as look:
        with running(lambda: td.train(model, text, mesh, **options)):
            look.page.get_by_text("running").first.wait_for(timeout=240_000)
            look.reads("tokens/s")
        for words in ("20 of 20", "dp 1, tp 2, pp 2", "between stages"):
            look.reads(words)
        assert look.share(BLUE) > 0.03
        assert look.share(ORANGE) > 0.03
        assert not look.scrolls_sideways()
        pipeline(cluster)
        look.reads("36 of 36")  # the other board takes the place of this one
        assert look.share(PALE) > 0.01


def test_a_file_is_looked_at_without_a_network(browser, tmp_path):
    simulated = td.simulate(td.schedule("zb-v", 6, 5))
    path = td.report(tmp_path / "run.html", simulated, simulated)
    with Look(browser, path.as_uri(), 800, 1400, offline=True) as look:
        look.reads("backward: weight gradient")
        look.reads("number in a box: the micro-batch")
        assert look.share(BLUE) > 0.005
        assert not look.scrolls_sideways()
        assert [url for url in look.asked if not url.startswith(("file:", "data:", "blob:"))] == []
