"""The chart of a training: its update is one, of no stage."""

import tiledask as td
from tiledask.lab.plots.gantt import KINDS, chunks_of


def test_an_update_is_none_of_the_stages_of_its_device():
    """Where it came first, the device's one stage would be drawn as a later one, paler."""
    program = td.training_program(td.GPT(59, 16, 2, 4, 8), (1, 1, 2), batch=2)
    timeline = program.timeline(lambda kernel: 1.0)
    assert {"F", "B", "U"} <= set(timeline.kind)
    assert set(chunks_of(timeline).values()) == {0}
    figure = td.plots.gantt(timeline)
    said = [text.get_text() for legend in figure.legends for text in legend.get_texts()]
    assert KINDS["U"][0] in said
    assert not any(text.startswith("paler") for text in said)
