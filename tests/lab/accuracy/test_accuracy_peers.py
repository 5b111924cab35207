"""Other planners on the published cases: what is asked, how answers come back, what they say.

Holds `tiledask.lab.accuracy.peer_questions`, `tiledask.lab.accuracy.peer_run` and
`tiledask.lab.accuracy.peers`.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tiledask.errors import ConfigError, DeadlineError
from tiledask.lab.accuracy import peers
from tiledask.lab.accuracy.peer_questions import GIB, Question, questions, read
from tiledask.lab.accuracy.peer_run import Cannot, PeerAnswers, answer, settle
from tiledask.lab.accuracy.peers import CHECKOUTS, ask, error, judged, summary

ROOT = Path(__file__).parents[3]
ASKED = [q for name in peers.PUBLISHED for q in read(ROOT / "data" / "published" / name)]
RECORD = ROOT / "data" / "measured" / "planner-peers.json"
AGAIN = "make the record again: python -m tiledask.lab.accuracy.peers ... --record " + RECORD.name


def one(case, key=None) -> Question:
    [found] = [q for q in ASKED if q.case == case and (key is None or q.key == key)]
    return found


def test_every_question_can_be_asked_or_says_why_not():
    assert len({(q.case, q.quantity, q.key) for q in ASKED}) == len(ASKED) == 449
    for q in ASKED:
        assert bool(q.cannot) != bool(q.model or q.run), q
        assert None not in q.model.values()
        assert q.published > 0 or q.quantity in ("fits", "ranking regret")
        if "gpus" in q.run and not q.candidates:
            assert q.run["gpus"] == q.run["tp"] * q.run["pp"] * q.run["dp"] * q.run["cp"], q.case


def test_published_numbers_come_in_bytes_and_seconds():
    days = one("sc21-t2-ptd-174.6B-384")
    assert (days.run["tp"], days.run["pp"], days.run["dp"]) == (8, 12, 4)
    B, s, L, h, V = 1152, 4096, 96, 12288, 131072
    flops = 72 * B * L * s * h**2 * (1 + s / (6 * h) + V / (12 * h * L))  # appendix A
    for case, key, wanted in (
        ("kor-fig1-22B-state", None, 45.5625 * GIB),
        ("zero-t1-7.5B-dp64", "os_gb", 31.4e9),
        ("kor-t4-22b-sequence", None, 0.019),
        # 84 days for 300e9 tokens in steps of 1536 x 2048
        ("sc21-t2-ptd-174.6B-384", None, 84 * 86400 * 1536 * 2048 / 300e9),
        ("titan-8b-fsdp8", "tps_per_gpu", 2 * 8192 / 5762),  # 2 sequences of 8192, 5762 a second
        ("mcore-h100-177B", None, flops / (2304 * 432.8e12)),
    ):
        assert one(case, key).published == pytest.approx(wanted, rel=1e-12), case


def test_rows_without_memory_have_a_verdict_alone_and_an_unknown_source_is_its_own():
    lost = {q.quantity for q in ASKED if q.case == "bloom-206B-bf16-dp8tp4pp12mbs2-h128"}
    ran = {q.quantity for q in ASKED if q.case == "bloom-177B-dp8tp1pp48mbs1"}
    assert (lost, ran) == ({"fits"}, {"fits", "peak bytes", "iteration seconds"})
    assert one("bloom-206B-bf16-dp8tp4pp12mbs2-h128").published == 0.0
    case = {"id": "new-7b", "kind": "memory_exact", "inputs": {}, "expected": {"all_gb": 1}}
    assert [q.source for q in questions([case])] == ["new-7b"]


RUN = one("mcore-h100-1.7B").run  # 4 sequences a replica; micro-batch and recomputation open


def asked(quantity, run=RUN, **more):
    return {"quantity": quantity, "key": "", "cannot": "", "model": {}, "run": run} | more


class Standin(PeerAnswers):
    """Faster with a larger micro-batch and slower with recomputation; 4 unrecomputed is refused."""

    def iteration_seconds(self, model, run):
        if (run["microbatch"], run["recompute"]) == (4, "none"):
            raise Cannot("needs 90 GiB")
        return 8.0 / run["microbatch"] + {"none": 0, "selective": 1, "full": 2}[run["recompute"]]

    def peak_bytes(self, question):
        return question["run"]["gpus"] * GIB

    def room(self, run):
        return 48 * GIB


def test_open_settings_are_tried_and_the_fastest_accepted_is_taken():
    tried = {(run["microbatch"], run["recompute"]) for run in settle(RUN)}
    assert tried == {(b, r) for b in (1, 2, 4) for r in ("none", "selective", "full")}
    said = answer(Standin(), asked("iteration seconds"))
    assert said["value"] == 3.0  # 4 with selective; 2 with none takes 4.0
    assert said["note"] == "chooses micro-batch 4, recomputes selective"
    fixed = RUN | {"microbatch": 4, "recompute": "none"}
    said = answer(Standin(), asked("iteration seconds", fixed))
    assert said == {"value": None, "why not": "needs 90 GiB", "note": ""}
    assert not any(run["chosen"] for run in settle(fixed))


@pytest.mark.parametrize(("gpus", "fits"), [(48, 1.0), (49, 0.0)])
def test_fits_compares_the_peak_with_the_room(gpus, fits):
    said = answer(Standin(), asked("fits", RUN | {"gpus": gpus}))
    assert (said["value"], said["note"]) == (fits, f"{gpus}.0 of 48 GiB")


def test_regret_is_of_the_fastest_layout_that_has_a_time():
    layouts = [
        {"tp": 1, "dp": 48, "pp": 1, "micro_batch": size, "measured_ms": ms}
        for size, ms in ((1, 100.0), (2, 125.0), (4, 80.0))
    ]
    run = RUN | {"recompute": "none"}  # the stand-in has no time for 4 and prefers 2 to 1
    said = answer(Standin(), asked("ranking regret", run, candidates=layouts))
    assert said["value"] == 125 / 80 - 1
    assert said["note"] == "picks tp=1 dp=48 pp=1 micro_batch=2; times 2 of 3 candidates"


def test_what_a_peer_has_not_is_a_reason():
    layout = {"tp": 1, "dp": 1, "pp": 1, "micro_batch": 1, "measured_ms": 1.0}
    regret = asked("ranking regret", candidates=[layout])
    for peer, question, why in (
        (Standin(), asked("GPU hours"), "predicts no GPU hours"),
        (PeerAnswers(), regret, "predicts no iteration seconds"),
        (Standin(), asked("fits", cannot="the case is empty"), "the case is empty"),
    ):
        assert answer(peer, question)["why not"] == why


PRINTS = """
import argparse

def config_parser():
    parser = argparse.ArgumentParser()
    for name in ("hidden-size", "num-layers", "vocab-size", "num-mlp-linears", "num-gpus",
                 "num-attention-heads", "sequence-length", "num-experts", "zero-stage",
                 "tensor-parallel-size", "pipeline-parallel-size", "batch-size-per-gpu",
                 "bytes-per-grad-ele", "topk"):
        parser.add_argument("--" + name, type=int, default=1)
    for name in ("kv-size-ratio", "ffn-expansion-factor"):
        parser.add_argument("--" + name, type=float)
    for name in ("partition-activations", "checkpoint-activations", "tied-embeddings", "moe"):
        parser.add_argument("--" + name, action="store_true")
    return parser

def calc_mem(args):
    print("Number of Parameters: 7.25 B")
    print("Per-GPU Activation Memory: %d.50 GiB" % args.partition_activations)
    print("Per-GPU Model Memory: 1.00 GiB")
    print("Per-GPU Gradient Memory: 2.00 GiB")
    print("Per-GPU Optimizer Memory (adamw): 4.25 GiB")
    print("Total Optimizer Memory (adamw): 99.00 GiB")
    print("Per-GPU Memory Required for Training: %d.00 GiB" % args.num_gpus)

def calc_params(args):
    print("Embedding parameters: 1.0 M")
    print("Attention parameters: 6.29 M")
    print("FFN parameters: 12.58 M")
    print("Total Params in the Model: 124.44 M")
"""


@pytest.fixture
def cookbook(tmp_path):
    """A checkout whose scripts print what the real ones print, in round numbers."""
    folder = tmp_path / "cookbook" / "calc"
    folder.mkdir(parents=True)
    for name in ("mem", "params"):
        (folder / f"calc_transformer_{name}.py").write_text(PRINTS)
    return folder.parent


def test_printed_numbers_come_back_in_bytes_and_parameters(cookbook):
    wanted = {
        ("params-gpt2-124m", "parameters"): 124.44e6,
        ("params-llama2-7b", "parameters"): 7.25e9,  # an expansion of 2.6875 is no integer
        ("pythia-70m", "parameters"): pytest.approx(18.87e6),
        ("pythia-70m", "GPU hours"): None,
        ("kor-fig1-175B-state", "state bytes"): 7.25 * GIB,
        ("kor-fig1-175B-act-seqsel", "activation bytes"): 1.5 * GIB,
        ("bloom-177B-dp8tp1pp48mbs1", "peak bytes"): 384 * GIB,
        ("bloom-177B-dp8tp1pp48mbs1", "iteration seconds"): None,
        ("bloom-177B-dp8tp1pp48mbs1", "fits"): 0.0,
        ("zero-t1-128B-dp16", "state bytes"): None,
    }
    cases = [q for q in ASKED if q.case in {case for case, _ in wanted}]
    rows = ask("eleutherai", str(cookbook), cases)
    assert {(row["case"], row["quantity"]): row["value"] for row in rows} == wanted
    assert {"published", "source", "key", "peer", "why not", "note"} <= set(rows[0])


@pytest.mark.long
def test_a_wrong_path_or_a_program_that_breaks_says_what_to_give(tmp_path, cookbook):
    with pytest.raises(ConfigError, match=r"no calculon/llm/llm\.py; give one of github.*--calcul"):
        ask("calculon", str(tmp_path), ASKED[:1])
    with pytest.raises(ConfigError, match=r"nowhere does not run \(No such file.*--python PATH"):
        ask("eleutherai", str(cookbook), ASKED[:1], python="/nowhere")
    (cookbook / "calc" / "calc_transformer_mem.py").write_text("import a_module_that_is_not")
    with pytest.raises(ConfigError, match=r"No module named 'a_module_that_is_not'.*--python PATH"):
        ask("eleutherai", str(cookbook), ASKED[:1])
    (cookbook / "calc" / "calc_transformer_mem.py").write_text("import time\ntime.sleep(600)")
    with pytest.raises(DeadlineError, match=r"1 questions not within 0.2 s.*--limit SECONDS"):
        ask("eleutherai", str(cookbook), ASKED[:1], limit=0.2)


@pytest.mark.long
def test_the_command_prints_every_question_and_keeps_a_record(cookbook, tmp_path, capsys):
    path = tmp_path / "record.json"
    assert peers.main(["--eleutherai", str(cookbook), "--record", str(path)]) == 0
    printed = capsys.readouterr().out
    assert "no time" in printed
    assert all(q.case in printed for q in ASKED if len(q.case) < 20)
    assert "numbers expressed of those asked for" in printed
    kept = json.loads(path.read_text())
    assert len(kept["rows"]) == len(ASKED)
    assert kept["summary"] == summary(kept["rows"])
    assert kept["peers"].keys() == {"eleutherai"}
    assert kept["settings"].keys() == {"eleutherai", "all"}


def test_the_command_needs_a_checkout_and_says_which_one_is_wrong(tmp_path, capsys):
    with pytest.raises(SystemExit):
        peers.main([])
    assert "--llm-analysis" in capsys.readouterr().err
    assert peers.main(["--llm-analysis", str(tmp_path)]) == 1
    assert "is no checkout of llm-analysis" in " ".join(capsys.readouterr().out.split())


def row(value, published, quantity="peak bytes", case="a", source="s", peer="p"):
    facts = {"value": value, "published": published, "quantity": quantity}
    return facts | {"case": case, "source": source, "peer": peer}


def test_summary_means_sizes_and_keeps_the_sign_of_the_worst():
    rows = [
        row(value, 100, case=case) for case, value in zip("abcd", (90, 130, 40, None), strict=True)
    ]
    rows += [row(1.0, 0.0, "fits"), row(0.0, 0.0, "fits")]
    bytes_, fits = sorted(summary(rows), key=lambda group: -group["asked"])
    assert (bytes_["asked"], bytes_["expressed"]) == (4, 3)
    assert bytes_["mean error"] == pytest.approx(1 / 3)
    assert (bytes_["worst error"], bytes_["worst case"]) == (-0.6, "c")
    assert judged(bytes_) == "3 of 4: 33.3 %, -60.0 %"
    assert judged(fits) == "1 of 2 right"
    assert error(row(None, 100)) is None


@pytest.fixture(scope="module")
def kept():
    return json.loads(RECORD.read_text())


def test_the_record_answers_every_question_of_the_published_cases(kept):
    asked = {(q.case, q.quantity, q.key): q.published for q in ASKED}
    assert set(kept["peers"]) == set(CHECKOUTS)
    for name in CHECKOUTS:
        rows = [row for row in kept["rows"] if row["peer"] == name]
        there = {(r["case"], r["quantity"], r["key"]): r["published"] for r in rows}
        assert there == pytest.approx(asked), AGAIN
        assert all((row["value"] is None) == bool(row["why not"]) for row in rows)
    assert kept["summary"] == summary(kept["rows"])


def test_the_record_shows_what_is_known_of_the_three(kept):
    found = {(g["quantity"], g["source"], g["peer"]): g for g in kept["summary"]}
    times = found["iteration seconds", "Korthikanti Table 5", "calculon"]
    assert times["mean error"] < 0.0365  # of all eight, two of which are wider off
    states = found["state bytes", "Korthikanti Fig. 1", "calculon"]
    assert -0.109 < states["worst error"] < -0.108  # 16 bytes where the runs kept 18
    assert found["peak bytes", "BLOOM log", "eleutherai"]["mean error"] > 5


PLACES = {name: "TILEDASK_" + name.upper().replace("-", "_") for name in CHECKOUTS}
PYTHON = os.environ.get("TILEDASK_PEERS_PYTHON", sys.executable)


def checkout(name):
    place = os.environ.get(PLACES[name])
    if not place:
        home = CHECKOUTS[name][0]
        pytest.skip(f"{PLACES[name]} names no checkout of {home}")
    return place


def printed(command, **more):
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, **more)
    return done.stdout


@pytest.mark.parametrize("name", CHECKOUTS)
def test_the_record_is_what_the_programs_say_now(name, kept):
    place = checkout(name)
    if kept["peers"][name] != peers.commit(place):
        pytest.skip(f"the record was made with {name} at {kept['peers'][name]}")
    said = [row["value"] for row in ask(name, place, ASKED, PYTHON)]
    there = [row["value"] for row in kept["rows"] if row["peer"] == name]
    assert said == pytest.approx(there, nan_ok=False)


def test_calculon_gives_the_numbers_of_its_own_validation():
    place = checkout("calculon")
    here = {"cwd": place, "env": os.environ | {"PYTHONPATH": "."}}
    own = printed([PYTHON, "bin/calculon", "llm-validation"], **here)
    tables = [text.split("\nAve") for text in own.split("Model,|,Profile")]
    for case, line in (("kor-t5-22B", "megatron-22B"), ("kor-t5-175B", "gpt3-175B")):
        cases = [q for q in ASKED if q.case == case]
        ours = {row["key"]: row["value"] for row in ask("calculon", place, cases, PYTHON)}
        [[_, full, present]] = [
            row.split("|,") for row in tables[-1][0].splitlines() if row.startswith(line)
        ]
        both = [float(part.split(",")[1]) for part in (full, present)]
        keys = "iteration_s_full_recompute", "iteration_s_present_work"
        assert [round(ours[key], 2) for key in keys] == both
    assert "Ave,,3.65%\nMax,,8.87%" in own


def test_llm_analysis_gives_the_numbers_of_its_own_command():
    place = checkout("llm-analysis")
    options = (
        "--model_name decapoda-research_llama-13b-hf --gpu_name a100-sxm-80gb "
        "--total_num_tokens 1e12 --activation_recomputation 1 --tp_size 8 --pp_size 8 "
        "--sp_size 8 --global_batch_size 4000000 --total_num_gpus 2048 --flops_efficiency 0.5 "
        "--hbm_memory_efficiency 0.9"
    )
    command = [PYTHON, "-m", "llm_analysis.analysis", "train", *options.split()]
    [ours] = ask("llm-analysis", place, [one("llama1-hours-13b")], PYTHON)
    assert ours["value"] == pytest.approx(json.loads(printed(command, cwd=place))["gpu_hours"])
