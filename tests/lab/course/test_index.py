"""Every question has its section in the notebooks, and the index says which.

python tests/lab/course/test_index.py                writes nbs/questions.md
"""

import tiledask as td
from tiledask.lab.course.index import taught
from tiledask.lab.course.table import QUESTIONS
from tiledask.plan.data import shipped

PAGE = shipped("nbs") / "questions.md"
HEAD = """# The questions, by number

Where each of the 39 questions is taught; `tiledask ask 34` in a terminal works out and runs one. \
<!-- python tests/lab/course/test_index.py makes this page from the notebooks' headings -->

| | question | taught in |
|---|---|---|
"""


def page() -> str:
    """The index as Markdown: a line for each question, with links to the notebooks."""
    lines = []
    for number, each in QUESTIONS.items():
        title = each.words(each.title).replace("|", "\\|")
        there = [(w["notebook"], w["section"]) for w in taught(number)]
        links = "; ".join(f"[{name[:-6]}]({name}), {section}" for name, section in there)
        lines.append(f"| {number} | {title} | {links} |\n")
    return HEAD + "".join(lines)


def test_every_question_is_taught_by_a_section():
    assert [*QUESTIONS] == [*range(1, len(QUESTIONS) + 1)]
    assert [number for number in QUESTIONS if not taught(number)] == [], "have no section"


def test_an_answer_says_where_it_is_taught():
    assert "nbs/06_cut_24_layers.ipynb: The best" in td.ask(34, run=False).to_text(explain=True)


def test_the_page_is_what_the_headings_say():
    assert PAGE.read_text("utf-8") == page()


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
