"""The report: complete, escaped, self-contained, and written whole or not at all.

Holds `tiledask.lab.dashboard.page`.
"""

import os
import stat
from datetime import datetime
from html.parser import HTMLParser

import pytest
from oracles.pages import outside

from tiledask.errors import ConfigError
from tiledask.lab.plots import idle_bars
from tiledask.lab.report import Report, library_versions
from tiledask.lab.table import Claim, Comparison

EVIL = "<script>alert('x')</script>"
GOOD = Comparison("good", [Claim("a", 1, None, 1, rule="equal")])
BAD = Comparison("bad", [Claim(EVIL, 1, None, 2, rule="equal"), Claim("b", 2)])


class Page(HTMLParser):
    """Tags with their attributes, ids, and the words outside style."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict]] = []
        self.open: list[str] = []
        self.words = ""
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in ("meta", "img", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, f"</{tag}> closes nothing"

    def handle_data(self, data):
        if self.open[-1:] != ["style"]:
            self.words += data

    def all(self, tag: str, attribute: str) -> list[str]:
        return [a[attribute] for t, a in self.tags if t == tag and attribute in a]


@pytest.fixture(scope="module")
def figure():
    return idle_bars({"naive": (0.5, 0.5, 0.51)})


def report(figure) -> Report:
    made = Report(
        f"Tour {EVIL}",
        facts={"GPU": f"none {EVIL}"},
        versions={"dask": "1.2.3"},
        date=datetime(2026, 1, 2, 3, 4),
    )
    made.section("Fit").text("**Bold** and `code`.\n\n- one\n- two").table(GOOD)
    made.section(f"Idle {EVIL}").table(BAD).figure(figure, "idle", f"Caption {EVIL} \" '")
    made.section("Words").text(EVIL + "\n\n[a](http://x.y) ![b](http://x.y/z.png) <http://x.y>")
    return made


@pytest.mark.long
def test_the_page_is_well_formed_and_complete_and_shows_html_in_words_as_words(figure):
    page = Page(report(figure).to_html())
    assert page.open == []
    for words in ("Tour", "2026-01-02 03:04", "GPU", "dask", "1.2.3", "Bold", "code", "Caption"):
        assert words in page.words
    for words in ("1 of 2 claims hold", "1 of 1", "differ by 1"):
        assert words in page.words
    assert page.all("html", "lang") == ["en"]
    assert page.all("section", "id") == ["part-1", "part-2", "part-3"]
    # the failure in the summary leads to its section, then the table of contents to each
    assert page.all("a", "href") == ["#part-2", "#part-1", "#part-2", "#part-3"]
    # title in the head and on the page, fact, failure in the summary with its section, contents,
    # heading, row, caption, text
    assert page.words.count(EVIL) == 10
    assert page.all("img", "alt") == [f"Caption {EVIL} \" '"]


@pytest.mark.long
def test_nothing_is_loaded_from_outside_and_nothing_runs(figure):
    html = report(figure).to_html()
    assert outside(html) == []
    for tag, attributes in Page(html).tags:
        assert tag not in ("script", "link", "iframe", "object", "b")
        assert not any(name.startswith("on") for name in attributes)
    assert "url(" not in html
    assert "@import" not in html


@pytest.mark.long
def test_the_summary_says_what_was_checked(figure):
    made = report(figure)
    assert (made.held, made.checked, made.ok) == (1, 2, False)
    assert 'class="summary fails"' in made.to_html()
    empty = Report("empty")
    assert empty.summary == "No claim was checked"
    assert 'class="summary none"' in empty.to_html()
    fine = Report("fine")
    fine.section("s").table(GOOD)
    assert fine.ok
    assert 'class="summary "' in fine.to_html()


@pytest.mark.long
def test_the_files_are_the_page_and_its_figures(figure, tmp_path):
    made = report(figure)
    page = made.write(tmp_path / "build" / "tour")
    assert page == tmp_path / "build" / "tour" / "report.html"
    assert sorted(p.name for p in page.parent.iterdir()) == ["01-idle.png", "report.html"]
    png = (page.parent / "01-idle.png").read_bytes()
    assert png.startswith(b"\x89PNG")
    assert made.sections[1].pictures[0].uri in page.read_text("utf-8")
    assert page.read_text("utf-8") == made.to_html()
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE(page.stat().st_mode) == 0o666 & ~umask


@pytest.mark.long
def test_a_failed_write_leaves_the_old_page_and_no_scraps(figure, tmp_path, monkeypatch):
    made = report(figure)
    page = made.write(tmp_path)
    before = page.read_bytes()
    made.section("new").text("new")

    replace = os.replace

    def refuse(part, target):
        if target == page:
            raise OSError("disk full")
        replace(part, target)

    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(OSError, match="disk full"):
        made.write(tmp_path)
    assert page.read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["01-idle.png", "report.html"]


@pytest.mark.long
def test_two_figures_of_one_name_are_refused_before_anything_is_written(figure, tmp_path):
    made = Report("r")
    made.section("s").figure(figure, "one").figure(figure, "one")
    with pytest.raises(ConfigError, match="'one' 2 times"):
        made.write(tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["../up", "Idle", "a b", "", "a.png", "a--b"])
def test_a_figure_name_is_a_file_name_and_a_table_a_comparison(figure, name):
    section = Report("r").section("s")
    with pytest.raises(ConfigError, match="small letters, digits and dashes"):
        section.figure(figure, name)
    with pytest.raises(ConfigError, match="takes a Comparison, got list"):
        section.table([1])


def test_versions_are_of_what_is_installed():
    found = library_versions()
    assert {"Python", "numpy", "dask"} <= set(found)
    assert all(found.values())
