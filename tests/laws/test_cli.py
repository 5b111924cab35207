"""The command line: answers, exit codes, JSON, and errors a person can act on."""

import json
import re
import shlex
from collections import Counter
from dataclasses import fields

import pytest
from oracles.finished import python

import tiledask as td
from tiledask.cli import _parser, commands, main
from tiledask.extras import bring
from tiledask.lab.commands.lists import LISTS
from tiledask.lab.doctor import _unusable
from tiledask.plan.data import data_file, names
from tiledask.plan.frameworks.exchange import FRAMEWORKS


def run(capsys, *arguments):
    code = main([*arguments, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_fit_takes_a_recipe_file_a_cache_and_what_is_offloaded(capsys, tmp_path):
    said = json.loads(data_file("recipes", "int8-weights.json").read_text("utf-8"))
    mine = tmp_path / "mine.json"
    mine.write_text(json.dumps(said | {"name": "mine"}))
    served = "fit", "llama-2-7b", "1xH100", "--recipe", str(mine), "--sequence", "1"
    code, answer = run(capsys, *served, "--cached", "1000")
    assert (code, answer["recipe"], answer["cached"]) == (0, "mine", 1000)
    assert answer["per_stage"][0] > 1000 * 524_288
    code, answer = run(capsys, "fit", "gpt2-xl", "1xH100", "--offload", "cpu")
    assert (code, answer["offloaded"]) == (0, {"cpu": 12 * 1_557_611_200})
    mine.write_text("{}")
    assert main(list(served)) == 2
    assert "mine.json" in capsys.readouterr().err


def test_a_layout_is_imported_and_exported(capsys, tmp_path):
    flags = "--tensor-model-parallel-size 2 --micro-batch-size 1 --global-batch-size 32 --bf16"
    typed = ("fit", "gpt2", "8xA100-40GB", "--megatron", flags, "--zero", "1")
    code, answer = run(capsys, *typed, "--export", "deepspeed")
    assert code == 0
    found, dp_and_zero = answer["imported"], (4, 1)
    assert found["recipe"] == "mixed-adam-18"
    assert (found["layout"]["dp"], found["layout"]["zero"]) == dp_and_zero
    path = tmp_path / "ds.json"
    path.write_text(answer["export"]["text"])
    again = run(capsys, "fit", "gpt2", "8xA100-40GB", "--deepspeed", str(path))[1]["imported"]
    assert (again["layout"]["tp"], again["layout"]["zero"]) == (2, 1)
    model = "--num-layers 2 --hidden-size 64 --num-attention-heads 4 " + flags
    assert run(capsys, "fit", "8xA100-40GB", "--megatron", model)[0] == 0
    typed = "plan gpt2 2xA100-40GB 8 --no-sensitivity --first 1 --export megatron"
    assert "--global-batch-size 8" in run(capsys, *typed.split())[1]["export"]["text"]


@pytest.mark.parametrize(
    ("typed", "name", "facts"),
    [
        ("list models llama-3.1", "llama-3.1-8b", {"parameters": 8_030_261_248, "active": None}),
        ("list models", "mixtral-8x7b", {"active": 12_879_925_248, "kv_heads": 8}),
        ("list hardware", "h200", {"memory": 141e9, "a node": 8}),
        ("list recipes adam-16", "mixed-adam-16", {"bytes/parameter": 16}),
        ("list schedules", "1f1b", {"idle": 3 / 11, "kept": 4.0}),
    ],
)
def test_lists_have_every_name_and_its_main_numbers(capsys, typed, name, facts):
    code, answer = run(capsys, *typed.split())
    assert code == 0
    assert {key: answer[name][key] for key in facts} == pytest.approx(facts)
    _, kind, *part = typed.split()
    known = td.schedules if kind == "schedules" else names(kind)
    assert list(answer) == [each for each in known if "".join(part) in each]


def test_idle_diagnoses_a_trace(capsys, tmp_path):
    t = td.simulate(td.schedule("1f1b", 4, 8), forward=1.0, backward=2.0, latency=0.25)
    t.to_frame().to_csv(trace := str(tmp_path / "run.csv"))
    code, answer = run(capsys, "idle", "--diagnose", trace)
    assert (code, answer["devices"], answer["makespan"]) == (0, 4, pytest.approx(37.0))
    found = [answer["findings"][n]["value"] for n in ("schedule", "microbatches", "latency")]
    assert found == ["1f1b", 8, pytest.approx(0.25)]
    assert 0 < len(answer["remedies"]) <= 5
    assert main(["idle", "--diagnose", trace]) == 0
    assert "250 ms" in capsys.readouterr().out


# -- what is printed -----------------------------------------------------------------------------


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "typed",
    [
        "plan gpt2 2xA100-40GB 8",
        "plan llama-3.1-70b 8xH100 64 --no-sensitivity",
        "fit gpt2-xl 8xA100-80GB --pp 8 --microbatches 8 --critique",
        "partition 1000 40 --chunks 2 --judge 1-500|501-1000",
        "idle interleaved 32 64",
        "ask hardware refresh --no-run",
        "ask 34 --no-run",
        "puzzle 4 --hint --answer 1|2",
        "doctor",
        "list hardware",
    ],
)
def test_no_digit_is_cut_at_any_width(capsys, monkeypatch, tmp_path, typed):
    monkeypatch.setattr("tiledask.lab.doctor.ask_gpu", lambda: _unusable("no driver"))
    for name in ("_memory", "_disk"):  # both change while this runs
        monkeypatch.setattr(f"tiledask.lab.doctor.{name}", lambda: ("ok", "8 GB"))
    monkeypatch.setattr("platform.platform", lambda: "Linux-6.1")  # one word, of any length
    numbers = {}
    for width in ("1000", "40", "60", "80", ""):  # "": a pipe, of which no width is known
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / width / "x"))  # no hint was seen there
        monkeypatch.setenv("COLUMNS", width)
        main(typed.split())
        shown = capsys.readouterr().out
        assert "…" not in shown
        numbers[width] = Counter(re.findall(r"[0-9][0-9.,]*[0-9]|[0-9]", shown))
        assert numbers[width] == numbers["1000"], f"at {width} columns"


@pytest.mark.parametrize(
    "given",
    [
        ("{config}", "{cluster}", "16", "--sequence", "1024", "--recipe", "fp32-adam"),
        ("gpt2", "4xA100-80GB", "16", "--calibration", "{mine}"),
    ],
)
def test_the_printed_command_asks_the_same_question(capsys, tmp_path, given):
    folder = tmp_path / "a folder; with [brackets]"
    folder.mkdir()
    config, cluster = folder / "config.json", folder / "mine.json"
    config.write_text(data_file("models", "gpt2.json").read_text("utf-8"), "utf-8")
    cluster.write_text(json.dumps({"devices": 4, "device": "A100-80GB"}), "utf-8")
    mine = folder / "calibration.json"
    td.calibrate(1.0, "gpt2", td.Layout(), "1xA100-80GB", framework="torchtitan").save(mine)
    given = [word.format(config=config, cluster=cluster, mine=mine) for word in given]
    main(["plan", *given, "--no-sensitivity"])
    (line,) = re.findall(r"^the first one:\n  tiledask (.*)", capsys.readouterr().out, re.M)
    words = shlex.split(line)
    found = run(capsys, "plan", *given, "--no-sensitivity")[1]
    best = found["plans"][0]
    code, answer = run(capsys, *words)
    assert (code, answer["verdict"]) == (0, best["verdict"])
    assert max(answer["per_stage"]) == best["peak"]
    assert answer["saving"] == pytest.approx(found["saving"])  # by seconds of a step


def test_every_field_of_a_layout_can_be_typed():
    """So that no plan has a field that the printed command must leave out."""
    known = vars(_parser("fit").parse_args(["fit", "gpt2", "1xT4"]))
    assert {field.name for field in fields(td.Layout)} <= set(known)


@pytest.mark.parametrize(
    ("command", "known"),
    [
        ("idle", td.schedules),
        ("fit", FRAMEWORKS),
        ("matmul", [*td.algorithms][1:]),
        ("list", LISTS),
    ],
)
def test_help_names_all_that_there_is(capsys, command, known):
    with pytest.raises(SystemExit):
        main([command, "--help"])
    words = capsys.readouterr().out.split()
    assert set(known) <= {word.strip("{},()") for word in words for word in re.split("[,|]", word)}


# -- figures -------------------------------------------------------------------------------------


@pytest.mark.parametrize("typed", ["idle 1f1b 2 4", "puzzle 1"])
def test_a_figure_is_written_or_refused_before_the_work_begins(
    capsys, tmp_path, monkeypatch, typed
):
    command = typed.split()[0]
    module, *_ = commands()[command]
    with monkeypatch.context() as patch:
        begun = f"tiledask.lab.commands.{module}.run_{command}"
        patch.setattr(begun, lambda *_: pytest.fail("it began"))
        for name in ("x.jpg", "x", "x.png.txt", "no/such/folder/x.png"):
            assert main([*typed.split(), "--figure", str(tmp_path / name)]) == 2
            words = "there is no folder" if "folder" in name else "written as a .png"
            assert words in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
    assert main([*typed.split(), "--figure", str(tmp_path / "x.PNG")]) == 0
    assert (tmp_path / "x.PNG").read_bytes().startswith(b"\x89PNG")


# -- what is not installed -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("package", "words"),
    [("distributed", "matmul 64"), ("matplotlib", "idle 1f1b 2 4 --figure {}/x.png")],
)
def test_a_package_that_is_not_there_is_named_with_its_pip_line(tmp_path, package, words):
    typed = words.format(tmp_path).split()
    code = f"import sys; sys.modules[{package!r}] = None; from tiledask.cli import main"
    done = python("-c", f"{code}; sys.exit(main({typed!r}))")
    assert done.returncode == 2
    assert done.stderr.endswith(f"needs {package}, which is not installed: {bring(package)}\n")
