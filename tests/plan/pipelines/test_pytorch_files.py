"""Files of schedules as PyTorch writes them: read, and the orders that our names have.

torch_csv/ has what PyTorch 2.15.0 wrote, by ``_dump_csv(file, format="compute_only")``.
"""

import re
from pathlib import Path

import pytest

from tiledask.errors import ScheduleError
from tiledask.plan.inputs.layout import Layout
from tiledask.plan.pipelines.schedule import Schedule
from tiledask.plan.pipelines.schedules import is_looped, schedule
from tiledask.plan.pipelines.validate import validate

FILES = sorted((Path(__file__).parent / "torch_csv").glob("*/*.csv"))
NAME = re.compile(r"(\w+)-(\d+)s(\d+)r(\d+)m-compute_only")


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_what_pytorch_wrote_is_read_and_is_our_order(file):
    name, stages, ranks, microbatches = NAME.fullmatch(file.stem).groups()
    text = file.read_text()
    read = validate(Schedule.from_text(text, name), int(stages), int(microbatches))
    assert read.devices == int(ranks)
    rows = [",".join(filter(None, row.split(","))) for row in text.splitlines()]
    assert read.to_text().splitlines() == rows
    options = {"devices": int(ranks)} if "Inter" in name or "Loop" in name else {}
    if name != "LoopedBFS":  # whose backwards PyTorch does from the last to the first
        assert read == schedule(name, int(stages), int(microbatches), **options)


def test_pytorchs_names_in_any_case():
    names = {
        "GPipe": "gpipe",
        "1F1B": "1f1b",
        "Interleaved1F1B": "interleaved",
        "LoopedBFS": "looped-bfs",
        "InterleavedZeroBubble": "interleaved-zb",
        "ZBVZeroBubble": "zb-v",
        "DualPipeV": "dualpipev",
    }
    for theirs, ours in names.items():
        options = {"devices": 2} if is_looped(ours) else {}
        for name in (theirs, theirs.lower(), theirs.upper()):
            assert schedule(name, 4, 4, **options) == schedule(ours, 4, 4, **options)
        assert Layout(pp=2, microbatches=4, schedule=theirs).schedule == ours
    with pytest.raises(ScheduleError, match="Interleaved1F1B"):
        schedule("PipelineScheduleMulti", 4, 4)
