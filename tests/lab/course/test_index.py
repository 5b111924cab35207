"""Every question has its section in the walkthroughs, and the index says which."""

import tiledask as td
from tiledask.lab.course.index import PAGE, page, taught
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
