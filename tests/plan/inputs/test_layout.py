"""Layouts: what is valid, how layers are dealt out, and what is in flight."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiledask.errors import ConfigError, PartitionError, ScheduleError
from tiledask.plan.inputs.layout import Layout


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"sequence_parallel": 1}, ConfigError, "sequence_parallel must be True or False"),
        ({"schedule": "zb"}, ConfigError, "schedule must be one of"),
        ({"interleave": 2, "pp": 4, "microbatches": 6}, ScheduleError, "got 6 and 4; 8 works"),
        ({"pp": 2, "partition": (1, 2, 4)}, PartitionError, "must start at 0 and rise"),
        ({"schedule": "zb-v"}, ScheduleError, "of 2 or more, got pp=1; use schedule='1f1b'"),
        ({"expert_tp": -1}, ConfigError, "expert_tp must be a whole number of 0 or more"),
        ({"tp": 2, "ep": 2, "expert_tp": 1}, ConfigError, "use sequence_parallel=True"),
    ],
)
def test_rules(fields, error, message):
    with pytest.raises(error, match=message):
        Layout(**fields)


def test_partitions_and_what_is_none():
    bloom = Layout(pp=12, partition=[0, *range(5, 66, 6), 70])
    assert bloom.chunk_layers(70) == (5, *[6] * 10, 5)
    assert Layout(pp=2, partition=(0, 0, 4)).chunk_layers(4) == (0, 4)  # embedding alone
    assert Layout(pp=2, partition="3,5").partition == (0, 3, 8)
    assert Layout(pp=3, partition="items").chunk_layers(10) == (3, 4, 3)
    assert Layout(pp=12, partition="items").chunk_layers(10) == (0, *[1] * 10, 0)
    for layout, layers, words in (
        (bloom, 71, "ends at 70, the model has 71"),
        (Layout(pp=4, interleave=2, microbatches=4), 7, "8 chunks need as many layers"),
        (Layout(pp=13, partition="items"), 10, "13 chunks need as many items"),
    ):
        with pytest.raises(PartitionError, match=words):
            layout.chunk_layers(layers)
    for text in ("", "5,E+5", "-1,3"):
        with pytest.raises(PartitionError, match="write the layers of each stage"):
            Layout(pp=2, partition=text)


@given(pp=st.integers(1, 9), more=st.integers(0, 30))
def test_layers_are_dealt_out_whole_and_even(pp, more):
    sizes = Layout(pp=pp).chunk_layers(pp + more)
    assert sum(sizes) == pp + more
    assert max(sizes) - min(sizes) <= 1


def test_interleaved_chunks_return_to_the_first_stage():
    layout = Layout(pp=2, interleave=2, microbatches=2, partition=(0, 1, 3, 6, 10))
    assert [layout.stage_layers(stage, 10) for stage in (0, 1)] == [1 + 3, 2 + 4]


def test_chunks_of_each_shape():
    assert Layout(pp=4, schedule="v-half").interleave == 2
    assert Layout(pp=2, schedule="interleaved", interleave=3, microbatches=5).chunks == 6
    both = Layout(pp=4, schedule="chimera")
    assert [both.stage_layers(stage, 8) for stage in range(4)] == [4, 4, 4, 4]
