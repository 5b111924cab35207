"""Every question has its section in the walkthroughs, and the index says which."""

import tiledask as td
from tiledask.lab.course.index import PAGE, page, sections, taught
from tiledask.lab.course.table import QUESTIONS
from tiledask.plan.data import shipped


def test_every_question_is_taught_by_a_section():
    assert [number for number in range(1, 40) if not taught(number)] == []
    assert set(QUESTIONS) == set(range(1, 40))


def test_an_answer_says_where_it_is_taught():
    assert "nbs/14_cut_24_layers.ipynb: The best one" in td.ask(34, run=False).to_text(explain=True)


def test_the_page_is_what_the_headings_say():
    written = (shipped("nbs") / PAGE).read_text("utf-8")
    assert written == page(), "make it anew: python -m tiledask.lab.course.index"


def test_a_section_is_found_wherever_it_begins_in_its_cell():
    source = ["text\n", "\n", "### One (questions 3, 12)\n", "more"]
    cell = {
        "cell_type": "markdown",
        "source": source,
    }
    assert [(n, w.section) for n, w in sections("09.ipynb", cell)] == [(3, "One"), (12, "One")]
