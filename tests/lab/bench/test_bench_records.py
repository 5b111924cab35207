"""What a bench leaves: goals that can be read, numbers that can be read again.

Holds `tiledask.lab.bench.files`, `tiledask.lab.bench.peers` and `tiledask.lab.bench.product`.
"""

import json

import pytest
from rich.console import Console

from tiledask.lab.bench.records import goals_table, record, resumed


def test_goals_stand_beside_what_was_reached_and_say_which_are_met():
    goals = [
        {"work": "a", "reached": 1.234567, "wanted": 2.0, "met": False},
        {"work": "b", "reached": 2.5, "wanted": 2.0, "met": True},
    ]
    console = Console(record=True, width=80)
    console.print(goals_table(goals))
    lines = [line for line in console.export_text().splitlines() if "│" in line]
    assert [line[-4:-2] for line in lines] == [" ✗", " ✓"]
    assert "1.23" in lines[0]
    assert "2.50" in lines[1]


@pytest.mark.long
def test_a_record_says_what_it_was_measured_on(tmp_path):
    file = tmp_path / "new" / "bench.json"
    record(file, "tiledask.lab.bench.product", {"rows": [1, 2]})
    kept = json.loads(file.read_text())
    assert kept["rows"] == [1, 2]
    assert kept["command"] == "python -m tiledask.lab.bench.product --record FILE.json"
    assert {"date", "machine", "processor", "versions", "BLAS"} < set(kept)
    assert "numpy" in kept["versions"]
    assert "cores" in kept["machine"]


def test_rows_of_an_interrupted_bench_are_not_measured_again_and_end_with_it(tmp_path):
    measured, said = [], []

    def bench(fails):
        with resumed("some", said.append, tmp_path) as known:
            for n in range(3):
                if n == fails:
                    raise KeyboardInterrupt
                known.once(lambda n=n: measured.append(n), n=n)

    for fails in (1, 2):
        with pytest.raises(KeyboardInterrupt):
            bench(fails)
    assert said[0].startswith("1 measurements of a run that was interrupted are in ")
    bench(None)
    assert measured == [0, 1, 2]
    assert list(tmp_path.iterdir()) == []
    bench(None)
    assert measured == [0, 1, 2, 0, 1, 2]
