"""`make gpu` without a GPU: what befalls one part costs that part, and nothing that it noted.

Holds `tiledask.lab.gpu.advice`, `tiledask.lab.gpu.child`, `tiledask.lab.gpu.command`,
`tiledask.lab.gpu.leftover`, `tiledask.lab.gpu.page`, `tiledask.lab.gpu.parts.tests`,
`tiledask.lab.gpu.process`, `tiledask.lab.gpu.record` and `tiledask.lab.gpu.runner`.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from oracles.finished import python
from oracles.waiting import wait_until
from twins.gpu_parts import gone

from tiledask.errors import ConfigError
from tiledask.lab.gpu import command, leftover, page
from tiledask.lab.gpu.advice import meaning, shared
from tiledask.lab.gpu.part import GpuPart, Notes
from tiledask.lab.gpu.record import DeviceRecord
from tiledask.lab.gpu.runner import MODULES, Lost, find_parts, shares
from tiledask.lab.store import Lines, alone, code
from tiledask.tile import probe

pytestmark = pytest.mark.long

HERE = Path(__file__).parents[2]
DEADLINE = 240.0


def start(out: Path, *options: str, **settings) -> subprocess.Popen:
    """`make gpu` over the parts of gpu_parts.py; ``out`` is where the record goes."""
    paths = os.pathsep.join([str(HERE.parent), str(HERE)])
    parts = ("--parts", "twins.gpu_parts", "--out", str(out))
    return subprocess.Popen(
        [sys.executable, "-m", "tiledask.lab.gpu", *parts, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env={**os.environ, "PYTHONPATH": paths, "SURVIVORS": str(out.parent)},
        **settings,
    )


def run(out: Path, *options: str) -> SimpleNamespace:
    child = start(out, *options)
    said, _ = child.communicate(timeout=DEADLINE)
    return SimpleNamespace(status=child.returncode, said=said, **left_by(out))


def left_by(out: Path) -> dict:
    """The record, its rows by part and key, and how each part ended."""
    kept = json.loads((out / "no-gpu.json").read_text())
    rows = {(row["part"], row["key"]): row for row in kept["rows"]}
    assert len(rows) == len(kept["rows"])
    return {"kept": kept, "rows": rows, "parts": {row["part"]: row for row in kept["parts"]}}


ALL = (
    "good,crashes,hangs,hangs-wholly,wrong,raises,exits,talks,half,leaves-workers,is-alone,"
    "lacks,too-long,last"
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """One run over all of them, into a folder of its own."""
    out = tmp_path_factory.mktemp("gpu") / "out"
    return run(out, "--minutes", "4", "--only", ALL), out


# -- disasters -----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("part", "state", "keys"),
    [
        ("good", "done", {"one": "right", "two": "timed", "three": "skipped"}),
        ("crashes", "done", {"before": "right", "illegal address": "failed", "behind": "right"}),
        ("hangs", "done", {"before": "right", "never ends": "failed", "behind": "right"}),
        ("hangs-wholly", "cut off", {"before": "right"}),
        ("wrong", "done", {"product": "wrong", "other": "right"}),
        ("raises", "failed", {"before": "right"}),
        ("exits", "died", {}),
        ("talks", "done", {"said": "right"}),
        ("half", "died", {"whole": "right"}),
        ("leaves-workers", "done", {"started": "right"}),
        ("is-alone", "done", {"same-session": "right", "own-session": "right"}),
        ("lacks", "left out", {}),
        ("too-long", "left out", {}),
        ("last", "done", {"one": "right", "two": "timed", "three": "skipped"}),
    ],
)
def test_every_part_is_reported_whatever_its_neighbours_do(whole, part, state, keys):
    found, _ = whole
    assert found.parts[part]["state"] == state
    assert {key: row["state"] for (p, key), row in found.rows.items() if p == part} == keys


@pytest.mark.slow
def test_what_failed_is_told_from_outside_with_what_was_known_of_it(whole):
    found, _ = whole
    died, hung = found.rows["crashes", "illegal address"], found.rows["hangs", "never ends"]
    assert (died["how"], died["kernel"], died["step"]) == ("died", "wgmma", "cluster")
    assert "SIGSEGV" in died["why"]
    assert hung["how"] == "hung"
    assert hung["why"] == "did not end within 0.6 s"
    assert found.parts["crashes"]["processes"] == found.parts["hangs"]["processes"] == 2
    assert found.parts["raises"]["why"] == "RuntimeError: no room for 3 | 4 bytes"
    assert "exit code 3" in found.parts["half"]["why"]
    assert "half a line" in found.parts["half"]["why"]
    assert "that cannot be read: 1" in found.parts["half"]["why"]
    assert found.parts["lacks"]["why"] == "no_such_package is not installed"
    assert "500 minutes" in found.parts["too-long"]["why"]
    assert found.rows["wrong", "product"]["error"] == "nan"


def test_what_a_part_prints_has_its_name_in_front_and_an_end_and_says_where_it_was_ended(whole):
    found, _ = whole
    hung = [line for line in found.said.splitlines() if line.startswith("hangs | ")]
    assert any("gpu_parts.py" in line and "in hangs" in line for line in hung)
    lines = [line for line in found.said.splitlines() if line.startswith("talks | ")]
    assert lines[0] == "talks | red ��? [bold]x[/] | y"
    assert max(map(len, lines)) < 500
    assert sum("zzz" in line for line in lines) == 1
    assert 1000 < len(lines) < 4000
    assert "\x1b" not in found.said


@pytest.mark.slow
def test_something_wrong_is_an_exit_code_and_all_right_is_none(whole, tmp_path):
    found, _ = whole
    assert found.status == 1
    assert run(tmp_path / "out", "--only", "good").status == 0


SUITE = """
import os, time, pytest

pytestmark = pytest.mark.gpu

def test_passes():
    pass

def test_differs():
    assert 2 + 2 == 5, "a tile is wrong"

def test_breaks():
    raise MemoryError("no room")

def test_lacks():
    pytest.skip("one GPU is here")

def test_dies():
    os.abort()

def test_hangs():
    time.sleep(600)

@pytest.mark.xfail
def test_is_known():
    assert False

def test_passes_at_the_end():
    pass
"""


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
def test_a_test_that_hangs_or_dies_costs_that_test(tmp_path, monkeypatch, processes):
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_it.py").write_text(SUITE)
    (tmp_path / "tests" / "test_that_is_broken.py").write_text("import no_such_module  # mark.gpu")
    (tmp_path / "tests" / "test_of_a_cpu.py").write_text("raise RuntimeError('not to be read')")
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = gpu: ours")
    monkeypatch.setenv("SUITE", str(tmp_path))
    monkeypatch.setenv("SUITE_PROCESSES", str(processes))
    found = run(tmp_path / "out", "--only", "tests")
    rows = {
        key.rpartition("/")[2].removeprefix("test_it.py::test_"): (row["state"], row.get("why", ""))
        for (_, key), row in found.rows.items()
    }
    hung, died = rows.pop("hangs"), rows.pop("dies")
    broken = rows.pop("test_that_is_broken.py")
    assert found.parts["tests"]["state"] == "done"
    assert rows == {
        "passes": ("right", ""),
        "differs": ("wrong", "AssertionError: a tile is wrong"),
        "breaks": ("failed", "MemoryError: no room"),
        "lacks": ("skipped", "one GPU is here"),
        "is_known": ("skipped", "expected to fail"),
        "passes_at_the_end": ("right", ""),
    }
    assert broken[0] == hung[0] == died[0] == "failed"
    assert "no_such_module" in broken[1]
    how = "crashed" if processes > 1 else "before its end"
    assert how in hung[1]
    assert how in died[1]
    page = (tmp_path / "out" / "no-gpu.md").read_text()
    assert "| tests/test\\_it.py | 2 | 1 |" in page
    assert "| tests | skipped | 1 | tests/test\\_it.py::test\\_lacks | one GPU is here |" in page


# -- the page ------------------------------------------------------------------------------------


def test_the_page_says_what_ran_what_is_fast_what_is_wrong_and_what_to_send(whole):
    found, out = whole
    text = (out / "no-gpu.md").read_text()
    heads = re.findall("^## (.*)", text, re.MULTILINE)[:5]
    fixed = ["What is fast", "What is wrong", "Send back", "What ran"]
    assert heads == [*fixed, "good: a part that good"]
    assert "| 14 | 1 | 2 | 2 | 2 |" in text
    assert "beside cuBLAS | two | 1.00 | 1.02 | ✓ |" in text
    assert "not measured |" in text
    assert "**crashes, illegal address**, failed: its process died of SIGSEGV" in text
    assert "What it means: two blocks share what they load" in text
    assert "| three | skipped |" in text
    assert "Its tables cannot be made: KeyError: 'median'." in text
    assert "Its figure cannot be drawn: KeyError: 'median'." in text
    for name in ALL.split(","):
        assert f"\n| {name} | " in text
    assert text.count("no room for 3 \\| 4 bytes") == 3
    for told in ("first: crashes, illegal address", "what it means: two blocks", "send back: "):
        assert told in found.said


def test_the_files_are_the_record_with_device_code_and_runs_the_page_and_figures(whole):
    found, out = whole
    facts = {"command", "date", "machine", "versions", "device", "code", "runs", "goals"}
    assert facts <= set(found.kept)
    assert found.kept["code"] == code()
    (ended,) = found.kept["runs"]
    assert (ended["minutes"], ended["ended"]) == (4.0, "")
    names = ["no-gpu-good.png", "no-gpu.json", "no-gpu.md"]
    assert sorted(path.name for path in out.iterdir()) == names
    assert (out / names[0]).read_bytes().startswith(b"\x89PNG")
    assert all(name in (out / "no-gpu.md").read_text() for name in names)


def test_there_are_eight_files_at_most(tmp_path):
    def drawn(rows):
        from matplotlib.figure import Figure

        return Figure((1, 1))

    parts = [GpuPart(f"p{i}", "", 1, 1, (), print, figure=drawn) for i in range(9)]
    record = DeviceRecord(tmp_path / "d.json", {"name": "d"})
    for part in parts:
        record.take({"part": part.name, "key": "k", "state": "right"})
    record.write()
    files = page.write(record.path, record.facts(), parts)
    assert sorted(files) == sorted(tmp_path.iterdir())
    assert len(files) == 8


# -- interrupted, and gone on with ---------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("asked", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_leaves_a_valid_record_with_its_page_and_no_process(tmp_path, asked):
    out = tmp_path / "out"
    # a shell that runs the tests in its background has them ignore SIGINT, and all they start
    heard = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    child = start(out, "--only", "wrong,waits,last", preexec_fn=heard)
    wait_until((tmp_path / "own-session").exists, "the part's workers")
    wait_until(lambda: "started" in (out / "no-gpu.json").read_text(), "its row")
    child.send_signal(asked)
    said, _ = child.communicate(timeout=DEADLINE)
    assert child.returncode == 130
    found = SimpleNamespace(**left_by(out))
    assert found.parts["waits"]["state"] == "cut off"
    assert found.parts["waits"]["why"] == "by Ctrl-C"
    assert found.parts["last"]["state"] == "left out"
    assert found.rows["waits", "started"]["state"] == "right"
    assert "by Ctrl-C" in (out / "no-gpu.md").read_text()
    assert "send back" in said
    assert not (out / "no-gpu.journal").exists()
    assert gone(tmp_path / "same-session")
    assert gone(tmp_path / "own-session")


@pytest.mark.slow
def test_a_runner_that_is_killed_leaves_no_process_and_the_next_run_loses_no_row(tmp_path):
    out = tmp_path / "out"
    child = start(out, "--only", "waits,last")
    wait_until((tmp_path / "own-session").exists, "the part's workers")
    wait_until(lambda: "under way" in (out / "no-gpu.journal").read_text(), "its notes")
    child.kill()
    child.communicate(timeout=DEADLINE)
    for name in ("same-session", "own-session"):
        wait_until(lambda name=name: gone(tmp_path / name), "the end of what it started")
    left_by(out)  # is whole
    notes = Notes("waits", out / "no-gpu.journal", 0.0, out)
    notes.add("the last one", "timed", seconds=1.0, begin=3)  # that the runner did not live to read
    found = run(out, "--only", "last")
    assert found.rows["waits", "the last one"]["seconds"] == 1.0
    assert found.parts["waits"]["state"] == "died"
    assert "the whole run was ended" in found.parts["waits"]["why"]
    assert found.parts["last"]["state"] == "done"
    text = (out / "no-gpu.md").read_text()
    assert text.index("## waits: ") < text.index("## last: ")  # of the whole record


@pytest.mark.slow
def test_a_resumed_run_measures_what_is_missing(tmp_path):
    out, other = tmp_path / "out", tmp_path / "other"
    first = run(out, "--only", "good,gives-up")
    assert first.parts["gives-up"]["state"] == "died"
    had = {key: row for key, row in first.rows.items() if key[0] == "gives-up"}
    assert [key for _, key in had] == ["row 0", "row 1", "row 2"]
    then = run(other, "--only", "good,gives-up", "--resume", str(out / "no-gpu.json"))
    assert "good: done before, by the same code" in then.said
    assert then.parts["gives-up"]["state"] == "done"
    assert {key: then.rows[key] for key in had} == had
    assert [key for part, key in then.rows if part == "gives-up"] == [f"row {i}" for i in range(6)]
    assert {"one", "two", "three"} == {key for part, key in then.rows if part == "good"}


def measured(part: str, *keys: str, digest: str = "") -> list[dict]:
    return [
        {"part": part, "key": key, "state": "right", "code": digest or code()["digest"]}
        for key in keys
    ]


def states(record: DeviceRecord) -> list[tuple[str, str, str]]:
    return [(row["part"], row["key"], row["state"]) for row in record.rows]


def kept_in(path: Path, rows: list[dict], device: str = "d", parts: tuple = ()) -> Path:
    facts = {"device": {"name": device}, "code": {"digest": ""}, "runs": [], "rows": rows}
    path.write_text(json.dumps({**facts, "parts": list(parts)}))
    return path


def test_a_part_that_runs_again_removes_its_old_rows_with_its_first_new_one(tmp_path):
    path = kept_in(tmp_path / "d.json", measured("a", "x", "y") + measured("b", "x"))
    record = DeviceRecord(path, {"name": "d"})
    record.start("a")
    assert len(record.rows) == 3
    record.take({"part": "a", "key": "y", "state": "wrong"})
    assert states(record) == [("b", "x", "right"), ("a", "y", "wrong")]


def test_resuming_trusts_rows_of_the_same_code_that_were_measured(tmp_path):
    rows = measured("a", "x", "y") + measured("a", "old", digest="other")
    rows += [{"part": "a", "key": "broke", "state": "failed", "code": code()["digest"]}]
    path = kept_in(tmp_path / "d.json", rows)
    record = DeviceRecord(path, {"name": "d"}, resume=path)
    record.start("a")
    assert record.kept("a") == {"x", "y"}
    record.take({"part": "a", "key": "broke", "state": "right"})
    assert states(record) == [("a", key, "right") for key in ("x", "y", "broke")]


def test_what_is_left_out_keeps_what_was_found_before(tmp_path):
    end = {"part": "a", "state": "done", "why": ""}
    path = kept_in(tmp_path / "d.json", measured("a", "x", digest="other"), parts=(end,))
    record = DeviceRecord(path, {"name": "d"})
    record.leave_out("a", "no time")
    record.leave_out("b", "no time")
    said = [(part["part"], part["state"]) for part in record.parts]
    assert said == [("a", "done"), ("b", "left out")]
    record.write()
    page.write(path, record.facts(), [], figures=False)
    text = (tmp_path / "d.md").read_text()
    assert "1 of these rows were measured by earlier code." in text


@pytest.mark.parametrize(
    ("digest", "states", "done"),
    [("", ["right"], True), ("other", ["right"], False), ("", ["right", "failed"], False)],
)
def test_a_part_is_done_if_this_code_ended_it_and_nothing_failed(tmp_path, digest, states, done):
    rows = [{"part": "a", "key": state, "state": state} for state in states]
    end = {"part": "a", "state": "done", "code": digest or code()["digest"]}
    path = kept_in(tmp_path / "d.json", rows, parts=(end,))
    assert DeviceRecord(path, {"name": "d"}, resume=path).done("a") == done


def test_a_record_of_another_device_or_none_at_all_is_refused(tmp_path):
    path = kept_in(tmp_path / "d.json", [], device="NVIDIA A100")
    with pytest.raises(ConfigError, match="is of NVIDIA A100, and this is NVIDIA H200"):
        DeviceRecord(tmp_path / "new.json", {"name": "NVIDIA H200"}, resume=path)
    path.write_text('{"rows": 3}')
    with pytest.raises(ConfigError, match="is no record of `make gpu`"):
        DeviceRecord(path, {"name": "d"})


def test_two_runs_do_not_write_into_one_folder(tmp_path, capsys):
    with alone(tmp_path / "record"):
        assert command.main(["--parts", "twins.gpu_parts", "--out", str(tmp_path)]) == 1
    assert f"and process {os.getpid()} is writing it" in " ".join(capsys.readouterr().out.split())


# -- plans ---------------------------------------------------------------------------------------


def sized(*sizes: tuple[float, float]) -> list[GpuPart]:
    return [GpuPart(f"p{i}", "", *size, (), print) for i, size in enumerate(sizes)]


@pytest.mark.parametrize("minutes", [0.1, 1, 2, 5, 9, 30, 300])
def test_shares_fill_the_minutes_and_give_each_its_least(minutes):
    parts = sized((1, 0.2), (6, 2), (6, 3), (0.5, 0.5), (20, 1))
    found = shares(parts, 60 * minutes)
    for part in parts:
        assert found.get(part.name, 60 * part.least) >= 60 * part.least - 1e-9
    if found:
        assert sum(found.values()) <= 60 * minutes + 1e-9
    left_out = [part for part in parts if part.name not in found]
    least = sum(60 * part.least for part in parts if part.name in found)
    assert all(60 * part.least + least > 60 * minutes for part in left_out)


def test_where_there_is_time_for_all_every_part_has_more_than_it_asks_for():
    assert shares(sized((1, 1), (3, 1)), 480) == {"p0": 120, "p1": 360}
    assert shares(sized((1, 1), (3, 1)), 120) == {"p0": 60, "p1": 60}


def test_parts_are_in_the_order_of_what_is_learnt_and_one_that_is_broken_is_lost_alone():
    found = find_parts(("twins.gpu_parts", "tiledask.lab.gpu.no_such_part"))
    assert [part.name for _, part in found[:2]] == ["good", "crashes"]
    assert isinstance(found[-1], Lost)
    assert found[-1].name == "no_such_part"
    assert "cannot be imported: ModuleNotFoundError" in found[-1].why


def test_the_parts_load_no_library_of_a_gpu_and_say_what_they_need():
    asked = f"""
import sys
from tiledask.lab.gpu.runner import Lost, find_parts
for part in find_parts():
    if not isinstance(part, Lost):
        assert part[1].needs and 0 < part[1].least <= part[1].minutes, part
loaded = {{name.partition(".")[0] for name in sys.modules}}
print(sorted(loaded & {{"cupy", "torch", "triton", "dask", "distributed", "matplotlib", "rmm"}}))
assert {MODULES!r}
"""
    done = python("-c", asked)
    assert done.stdout.strip() == "[]", done.stderr[-2000:]


@pytest.mark.parametrize("given", ["0", "-1", "nan", "x"])
def test_minutes_are_a_number_that_makes_sense(given, capsys):
    with pytest.raises(SystemExit):
        command.main(["--minutes", given])
    assert "--minutes" in capsys.readouterr().err


def said(capsys) -> str:
    """What was printed, in one line."""
    return " ".join(capsys.readouterr().out.split())


def test_a_part_that_does_not_exist_is_named_with_those_that_do(capsys):
    assert command.main(["--parts", "twins.gpu_parts", "--only", "good,kernel"]) == 1
    assert "parts that do not exist: kernel; the parts are good, crashes" in said(capsys)


def test_without_a_gpu_one_sentence_says_what_is_looked_for_and_what_to_do(monkeypatch, capsys):
    monkeypatch.setattr(command, "ask_gpu", lambda _: {"usable": False, "reason": "no driver"})
    assert command.main([]) == 1
    told = said(capsys)
    for words in ("finds none that it could use: no driver.", "nvidia-smi", "`tiledask doctor`"):
        assert words in told


def test_the_question_for_the_gpu_is_answered(monkeypatch):
    if probe().usable:
        assert command._device()["name"]
    else:
        with pytest.raises(ConfigError, match="finds none"):
            command._device()


# -- notes ---------------------------------------------------------------------------------------


@pytest.fixture
def notes(tmp_path):
    return Notes("p", tmp_path / "j", time.time() + 60, tmp_path, frozenset({"known"}))


def test_notes_are_on_disk_when_add_returns_with_what_begin_knew(notes):
    assert 0 < notes.left() <= 60
    assert notes.has("known")
    assert not notes.begin("known")
    assert notes.begin("new", kernel="wgmma")
    notes.add("new", "right", error=float("inf"), end="a fact")
    begun, row = Lines(notes.journal).read()
    assert begun == {"part": "p", "begin": "new", "seconds": 60.0, "kernel": "wgmma"}
    assert row.pop("took") >= 0
    said = {"state": "right", "kernel": "wgmma", "error": "inf", "end": "a fact"}
    assert row == {"part": "p", "key": "new", **said}


def test_notes_say_why(notes):
    with pytest.raises(ConfigError, match="right or wrong"):
        notes.add("x", "good")
    for state in ("skipped", "failed"):
        with pytest.raises(ConfigError, match="why="):
            notes.add("x", state)
    assert not notes.journal.exists()


def test_the_first_failing_line_names_the_layer():
    assert "multicast" in meaning({"step": "cluster", "how": "hung"})
    assert meaning({"step": "one tile", "how": "hung"}) != meaning({"step": "one tile"})
    assert meaning({"step": "unheard of"}) == ""
    rows = [
        {"state": "wrong", "orders": "CF", "kernel": "a"},
        {"state": "failed", "orders": "CF", "kernel": "b"},
        {"state": "right", "orders": "CC", "kernel": "a"},
    ]
    assert shared(rows) == {"orders": "CF"}


def test_failures_of_one_cause_are_told_once():
    why = "1 x 1 x 1: the driver does not make tensor maps, and it takes one of CUDA 12.0 or later"
    rows = [
        {"part": "first", "key": f"k{i}", "state": "failed", "why": why.replace("1 x 1", case)}
        for i, case in enumerate(("2 x 2", "bias: 3 x 3", "4 x 4"))
    ]
    rows.append({"part": "first", "key": "other", "state": "wrong", "error": 0.5, "limit": 0.1})
    grid = page._causes(rows)
    said = [row[:4] for row in grid.rows]
    assert said == [("first", "failed", 3, "k0"), ("first", "wrong", 1, "other")]


def test_what_carries_a_mark_is_found_and_ended():
    code = "import os, time; os.setsid(); time.sleep(600)"
    child = subprocess.Popen([sys.executable, "-c", code], env={leftover.MARK: "a mark"})
    try:
        wait_until(lambda: leftover.left("a mark") == [child.pid], "the child")
        assert leftover.left("another") == []
        assert leftover.end("a mark") == []
        assert child.wait(DEADLINE) == -signal.SIGKILL
    finally:
        child.kill()
