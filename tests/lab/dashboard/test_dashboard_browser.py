"""The page and its file in a real browser: what a person sees, and no error in its console.

Needs Playwright for Python (``pip install playwright``) and Debian's chromium (``apt-get install
chromium``); without them the tests are skipped.
"""

import io
import shutil
import threading

import numpy as np
import pytest

import tiledask as td
from tiledask.distributed.pipelines.stages import stack
from tiledask.lab.plots.style import BLUE, ORANGE, PALE

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
    """A page that remembers what went wrong in it, and what it asked for."""

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
        self.page.wait_for_selector(".bk-Figure", timeout=30_000)

    def reads(self, words: str) -> None:
        """Wait until ``words`` can be read."""
        self.page.get_by_text(words, exact=True).first.wait_for(timeout=30_000)

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
    td.run_schedule(
        td.schedule("1f1b", 3, 6),
        stack((0, 1, 2, 3), width=12, hidden=20),
        batch,
        cluster,
        target=batch,
        **paced,
    )


def pipelines(cluster, seen: threading.Event) -> None:
    """Runs until they have been ``seen``: a browser on a busy machine can miss one."""
    for _ in range(20):
        pipeline(cluster)
        if seen.is_set():
            return


def page_of(cluster, name: str) -> str:
    return f"{cluster.dashboard_link.removesuffix('/status')}/{name}"


@pytest.mark.parametrize(("name", "width"), [("tiledask", 1600), ("individual-tiledask", 800)])
def test_a_pipeline_is_drawn_while_it_runs(browser, cluster, name, width):
    look = Look(browser, page_of(cluster, name), width)
    seen = threading.Event()
    running = threading.Thread(target=pipelines, args=(cluster, seen))
    running.start()
    try:
        look.reads("makespan so far")
        look.reads("predicted idle share")
    finally:
        seen.set()
        running.join()
    look.reads("36 of 36")
    look.reads("1f1b")
    look.reads("25.0%")  # predicted: (3 - 1) / (6 + 3 - 1)
    assert look.share(BLUE) > 0.02
    assert look.share(ORANGE) > 0.04
    assert look.share(PALE) > 0.01
    assert look.page.evaluate(FITTING) == [36, 36]
    assert not look.scrolls_sideways()
    assert look.errors == []
    look.context.close()


def test_numbers_that_do_not_fit_are_left_out_and_come_with_a_zoom(browser, cluster):
    pipeline(cluster, None)
    look = Look(browser, page_of(cluster, "individual-tiledask"), 420)
    look.reads("36 of 36")
    shown, boxes = look.page.evaluate(FITTING)
    assert boxes == 36
    assert shown < 30
    look.page.evaluate(ZOOM)
    assert look.page.evaluate(FITTING)[0] > shown
    assert look.errors == []
    look.context.close()


def test_a_product_is_drawn(browser, cluster):
    look = Look(browser, page_of(cluster, "tiledask"), 1200)
    mesh = td.Mesh(cluster, (2, 2))
    A = td.distribute(np.ones((512, 512), "f4"), mesh, (td.Shard(0), td.Shard(1)))
    td.matmul(A, A)
    look.reads("tasks since the last pause")
    look.reads("Tasks per worker")
    assert look.page.evaluate(FITTING)[1] >= 4
    assert look.errors == []
    look.context.close()


@pytest.mark.parametrize(("name", "width"), [("tiledask", 1400), ("individual-tiledask", 700)])
def test_a_training_is_drawn_while_it_runs(browser, cluster, name, width):
    look = Look(browser, page_of(cluster, name), width, 900)
    text, over = td.load_text("tales"), threading.Event()
    model = td.GPT(text.vocabulary, hidden=16, layers=3, heads=4, sequence=16)

    def train() -> None:
        for _ in range(20):  # a browser on a busy machine can miss one
            td.train(
                model,
                text,
                td.Mesh(cluster, (1, 2, 2)),
                steps=20,
                batch=8,
                microbatches=2,
                progress=False,
            )
            if over.is_set():
                return

    running = threading.Thread(target=train)
    running.start()
    try:
        look.page.get_by_text("running").first.wait_for(timeout=60_000)
        look.reads("tokens/s")
    finally:
        over.set()
        running.join()
    look.reads("20 of 20")
    look.reads("dp 1, tp 2, pp 2")
    look.reads("between stages")
    assert look.share(BLUE) > 0.03
    assert look.share(ORANGE) > 0.03
    assert not look.scrolls_sideways()
    assert look.errors == []
    pipeline(cluster)
    look.reads("36 of 36")  # the other board takes the place of this one
    assert look.share(PALE) > 0.01
    look.context.close()


def test_a_file_is_looked_at_without_a_network(browser, tmp_path):
    schedule = td.schedule("zb-v", 6, 5)
    path = td.report(tmp_path / "run.html", td.simulate(schedule), td.simulate(schedule))
    look = Look(browser, path.as_uri(), 800, 1400, offline=True)
    look.reads("backward: weight gradient")
    look.reads("number in a box: the micro-batch")
    assert look.share(BLUE) > 0.005
    assert not look.scrolls_sideways()
    assert [url for url in look.asked if not url.startswith(("file:", "data:", "blob:"))] == []
    assert look.errors == []
    look.context.close()
