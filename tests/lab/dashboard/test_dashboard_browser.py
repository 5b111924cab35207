"""The page and its file in a real browser: what a person sees, and no error in its console.

Needs Playwright for Python (``pip install playwright``) and Debian's chromium (``apt-get install
chromium``); without them the tests are skipped.
"""

import io
import shutil

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
    "training": (training, ["20 of 20", "dp 1, tp 2, pp 2"], [BLUE, ORANGE]),
}


@pytest.mark.parametrize("what", WORK)
@pytest.mark.parametrize(("name", "width"), [("tiledask", 1400), ("individual-tiledask", 800)])
def test_work_is_drawn_on_an_open_page(browser, cluster, what, name, width):
    work, reads, colours = WORK[what]
    url = f"{cluster.dashboard_link.removesuffix('/status')}/{name}"
    with Look(browser, url, width, 900) as look:
        work(cluster)
        for words in reads:
            look.reads(words)
        assert all(look.share(colour) > 0.01 for colour in colours)
        assert not look.scrolls_sideways()


def test_a_file_is_looked_at_without_a_network(browser, cluster, tmp_path):
    pipeline(cluster)
    path = td.report(tmp_path / "run.html", cluster)
    with Look(browser, path.as_uri(), 800, 1400, offline=True) as look:
        look.reads("number in a box: the micro-batch")
        assert look.share(BLUE) > 0.005
        assert not look.scrolls_sideways()
        assert [url for url in look.asked if not url.startswith(("file:", "data:", "blob:"))] == []
