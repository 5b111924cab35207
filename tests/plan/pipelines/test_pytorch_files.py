"""Files of schedules as PyTorch writes them: read, and the orders that our names have.

torch_csv/ has what PyTorch 2.15.0 wrote, by ``_dump_csv(file, format="compute_only")``.
"""

import re
from pathlib import Path

import pytest

from tiledask.plan.inputs.layout import Layout
from tiledask.plan.pipelines.schedule import Schedule
from tiledask.plan.pipelines.schedules import OF_PYTORCH, layout_schedule, schedule
from tiledask.plan.pipelines.validate import validate

FILES = sorted((Path(__file__).parent / "torch_csv").glob("*/*.csv"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_what_pytorch_wrote_is_read_and_is_our_order(file):
    name, *numbers = re.match(r"(\w+)-(\d+)s(\d+)r(\d+)m", file.stem).groups()
    stages, ranks, microbatches = map(int, numbers)
    text = file.read_text()
    read = validate(Schedule.from_text(text, name), stages, microbatches)
    assert read.devices == ranks
    rows = [",".join(filter(None, row.split(","))) for row in text.splitlines()]
    assert read.to_text().splitlines() == rows
    ours = OF_PYTORCH[name.lower()]
    if name != "LoopedBFS":  # whose backwards PyTorch does from the last to the first
        assert read == layout_schedule(ours, stages, microbatches, ranks)
    assert Layout(pp=2, microbatches=4, schedule=name).schedule == ours
    for theirs in (name.upper(), "Schedule" + name):
        options = {"devices": ranks} if "Inter" in name or "Loop" in name else {}
        assert schedule(theirs, stages, microbatches, **options).name == ours
