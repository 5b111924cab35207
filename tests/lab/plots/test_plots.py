"""Figures: every word inside the picture and no word upon another, also of large ones; what is
drawn is what was computed: boxes are as long as actions, bars as bytes.

What else is in the pictures: the golden set `figures`.
"""

import base64
import io
import json
from itertools import combinations

import numpy as np
import pytest
from golden.figures import EVERY_CAUSE, FIGURES, GB, RING, S0, S1, SPLIT, cut, pipeline
from oracles.figures import clipped, crossed, drawn_texts, overlaps, places, words
from PIL import Image, ImageChops

from tiledask.errors import ConfigError
from tiledask.lab import plots
from tiledask.lab.plots.style import _OWN, PALE, PALETTE, colour_named, ink_on
from tiledask.lab.plots.timelines import KINDS, boxes_of
from tiledask.plan.ledger import Ledger
from tiledask.plan.pipelines.timeline import CAUSES
from tiledask.plan.products.traffic import Traffic


@pytest.mark.few(12)
@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_has_a_title_and_every_word_can_be_read(name):
    figure = FIGURES[name]()
    texts = drawn_texts(figure)
    assert len(texts) >= 3
    assert not clipped(figure, texts, by=1)
    assert not overlaps(texts)
    assert not crossed(figure, texts)
    assert figure.get_suptitle() or name.startswith("curves")
    for axes in figure.axes:  # a layout without room for the words lets the axes collapse
        assert axes.get_window_extent().height > 25


def test_a_notebook_shows_a_figure_that_no_setting_changes_and_that_changes_no_setting():
    import matplotlib as mpl

    figure = FIGURES["slots"]()
    png, size = figure._repr_png_()
    assert (png[:4], int.from_bytes(png[16:20])) == (b"\x89PNG", 960)
    assert size == {"width": 640}
    expected = FIGURES["slots"]().to_png()
    with mpl.rc_context({"font.size": 30, "axes.facecolor": "red"}):
        assert FIGURES["slots"]().to_png() == expected
        assert mpl.rcParams["font.size"] == 30
    assert repr(figure) == "Figure: A worker dies | time (s)"  # what it shows, for those who listen


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: plots.gantt(pipeline(1, 1), titles=["a", "b"]), "2 titles"),
        (lambda: plots.memory_bars(Ledger.of([])), "got 0"),
        (lambda: plots.traffic_matrix({"a": RING, "b": Traffic.of(3)}), "'b': 3"),
        (lambda: plots.slots({"slot 0": [("nap", 2, 1)]}), "ends after it begins"),
        (lambda: plots.curves({"a": {0: 1}}, xlabel="n", ylabel="s"), "above 0"),
        (lambda: plots.corner(*(cut((4, 5), S0, S1) for _ in "XAY")), "m x k by k x n"),
        (lambda: plots.tile_step(13, 11, 9, 4, (0, 3, 0)), "begins beyond 13 x 11 x 9"),
    ],
)
def test_what_cannot_be_drawn_is_refused(call, message):
    with pytest.raises(ConfigError, match=message):
        call()


def draw(m, p=4):
    if m == 3:
        raise ConfigError("m = 3 has no picture; take 1 or 2")
    return plots.slots({"slot 0": [("nap", 0, m)]}, title=f"m = {m}, p = {p}")


def test_a_slider_that_is_moved_draws_anew_and_what_is_refused_is_said():
    shown = plots.sliders(draw, {"m": 2}, m=[1, 2, 3], p=[4, 8])
    m, p, words, image = shown.children
    first = image.value
    assert (m.value, p.value, first) == (2, 4, draw(2)._repr_png_()[0])
    p.value = 8
    assert image.value == draw(2, 8)._repr_png_()[0] != first
    m.value = 3
    assert words.value == "m = 3 has no picture; take 1 or 2"
    assert image.layout.visibility == "hidden"
    m.value = 1
    assert (words.value, image.layout.visibility) == ("", "visible")


def test_a_page_without_python_has_the_figure_of_every_choice(monkeypatch):
    def stored():
        script = plots.sliders(draw, {"m": 2}, m=[2, 3], p=["a", "b"]).data
        return json.loads(script.split(">", 1)[1].partition("<")[0])  # no other tag is in it

    monkeypatch.setenv("TILEDASK_FRAMES", "4")
    page = stored()
    assert page["choices"] == {"m": ["2", "3"], "p": ["a", "b"]}
    assert page["start"] == [0, 0]
    images = [Image.open(io.BytesIO(base64.b64decode(f))) for f, _, _ in page["frames"][:2]]
    for p, image in zip("ab", images, strict=True):
        png = Image.open(io.BytesIO(draw(2, p).to_png()))
        assert ImageChops.difference(image.convert("RGB"), png.convert("RGB")).getbbox() is None
    assert page["frames"][2:] == [["", 0, "m = 3 has no picture; take 1 or 2"]] * 2
    monkeypatch.setenv("TILEDASK_FRAMES", "3")
    assert stored()["frames"] == []


# -- what is drawn -------------------------------------------------------------------------------


def test_a_timeline_is_a_box_for_each_action_piece_of_idle_time_and_transfer():
    timeline = pipeline(3, 4)
    boxes = boxes_of(timeline)

    def of(gid):
        found = (box.at for box in boxes if box.gid == gid)
        return sorted((round(y), x, pytest.approx(wide)) for x, y, wide, _ in found)

    idle = timeline.idle_time
    rows = {f"{kind}0": (timeline, timeline.kind == kind) for kind in "FB"}
    rows |= {cause: (idle, idle.code == number) for number, cause in enumerate(CAUSES)}
    for gid, (all_of, some) in rows.items():
        columns = all_of.device, all_of.start, all_of.end - all_of.start
        assert of(gid) == sorted(zip(*(c[some].tolist() for c in columns), strict=True))
    assert len(of("T")) == (timeline.kind == "T").sum() == 16
    below = [(b.at[1] % 1, (b.at[1] + b.at[3]) % 1) for b in boxes if b.gid == "T"]
    assert all(top > 0.36 and bottom < 0.5 for top, bottom in below)
    stages = {box.gid for box in boxes_of(EVERY_CAUSE, causes=False)}
    assert stages == {"F0", "B0", "T", "idle", "transfer", "overhead"}


def test_memory_bars_are_the_bytes_of_the_fullest_moment_and_marked_over_the_capacity():
    (axes,) = plots.memory_bars(SPLIT, 40 * GB).axes
    for tensor in ("weights", "optimizer", "activations"):
        drawn = [w for _, _, w, _ in places(axes, tensor)]
        assert drawn == [SPLIT.by_tensor(place)[tensor] for place in SPLIT.places]
    ends = [x + w for x, _, w, _ in places(axes, "activations")]
    assert ends == list(SPLIT.per_place.values())
    assert [(x, w) for x, _, w, _ in places(axes, "over")] == [(40 * GB, 2 * GB)]
    (line,) = axes.lines
    assert list(line.get_xdata()) == [40 * GB] * 2
    assert not places(plots.memory_bars(SPLIT, 42 * GB).axes[0], "over")
    assert "42 GB: 105 % of capacity" in words(axes)


# -- colours ---------------------------------------------------------------------------------------


def rgb(colour: str) -> np.ndarray:
    return np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)])


def test_no_two_names_of_the_package_have_the_same_colour_and_none_is_that_of_idle_time():
    own = [rgb(colour_named(name)) for name in _OWN]
    assert all(np.abs(one - rgb(PALE)).max() >= 16 for one in own)
    assert all(np.abs(a - b).max() >= 16 for a, b in combinations(own, 2))
    assert np.abs(rgb(colour_named("to_make_again")) - rgb(colour_named("all_reduce"))).max() > 9
    names = "forward", "backward", "backward_input", "backward_weight", "update", "multiply"
    assert [colour for _, colour in KINDS.values()] == [*map(colour_named, names)]
    assert colour_named("anything") == colour_named("anything") != colour_named("something")


@pytest.mark.parametrize("colour", [*PALETTE, "#FFFFFF", "#000000"])
def test_ink_has_the_contrast_that_small_text_needs(colour):
    from matplotlib.colors import to_rgb

    def luminance(c):
        r, g, b = (x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in to_rgb(c))
        return 0.2126 * r + 0.7152 * g + 0.0722 * b

    dark, light = sorted((luminance(colour), luminance(ink_on(colour))))
    assert (light + 0.05) / (dark + 0.05) >= 4.5
