"""Mistaken requests of every command: one sentence on standard error, and the exit code 2."""

import re

import pytest

MISTAKES = [
    # fit
    ("fit gpt-9 1xH100", "tiledask fit: no model description is called 'gpt-9'"),
    ("fit gpt2 0xH100", "0xH100"),
    ("fit 1xH100", "a model and a cluster are named"),
    ("fit 70B 64H100", "cannot read '64H100' as a cluster; write COUNTxNAME such as "),
    ("fit -5B 8xH100", "a number above 0 such as 70B"),
    ("fit 70B 64xH100 --batch -1", "--batch must be a whole number of 1 or more, got -1"),
    ("fit 70B 64xH100 --sequence 0", "--sequence must be a whole number of 1 or more, got 0"),
    ("fit llama-2-7b 8xA100-80GB --tp 4 --batch 25", "24 is"),
    ("fit 7B 8xH100 --tp 7", "tp may be one of [1, 2, 4, 8]"),  # of 32 heads, on 8 devices
    ("fit 70B 64xH100 --tp 8 --pp 2 --schedule zbv", "got 'zbv'"),
    ("fit 70B 64xH100 --recipe adam", "'fsdp-adam'? the usual one is 'mixed-adam-16'"),
    ("fit llama-2-7b 1x24GB --lora-rank 8 --recipe mixed-adam-16", "name lora or qlora"),
    ("fit gpt2 1xA100-80GB --recipe mixed-adam-18-fp8", "has no units for that but for fp64"),
    ("fit gpt2 1xT4 --zero3", "did you mean --zero: "),
    ("fit gpt2 1xT4 --stages 2", "did you mean --pp: "),
    ("fit gpt2 1xH100 --deepspeed a --torchtitan b", "one configuration at a time"),
    ("fit gpt2 1xH100 --price 2", "--price is for --tokens"),
    ("fit gpt2 1xH100 --tokens many", "cannot read 'many' as a number of 0 or more; write 15T"),
    ("fit gpt2 1xH100 --tokens 1T --price -2", "price must be a number of 0 or more, got -2"),
    ("fit gpt2 1xH100 --recipe int8-weights --tokens 1T", "keeps no gradients: it serves"),
    ("fit gpt2 1xH100 --offload cpu --tokens 1T", "how long their way takes is not modelled"),
    # learned positions: 1,024 of GPT-2
    ("fit gpt2 1xA100-40GB --sequence 4096", "1,024 positions, and not 4,096"),
    ("plan gpt2 8xA100-40GB 64 --sequence 2048", "1,024 positions, and not 2,048"),
    # plan
    ("plan 70B 64xH100 --devices 128", "between 1 and the cluster's 64, got 128;"),
    ("plan 70B 64xH100 0", "BATCH must be a whole number of 1 or more, got 0"),
    ("plan gpt-200b 1x40GB --devices 8,16 --fewest", "leave --devices out"),
    ("plan gpt-200b 1x40GB 64 --fewest", "leave the batch out"),
    ("plna 70B 64xH100", "did you mean 'plan'? tiledask --help"),
    ("list model", "did you mean 'models'? tiledask list --help"),
    # idle
    ("idle zbh1 4 8", "did you mean 'zb-h1'?"),
    ("idle 1f1b 4", "needs MICROBATCHES behind it, such as: tiledask idle 1f1b 4 8"),
    ("idle 4 8", "the schedule's name comes first"),
    ("idle", "--diagnose TRACE"),
    ("idle 1f1b 4 8 --chunks 2", "any number of them have interleaved"),
    ("idle dualpipe 3 8", "3 devices have none; use 4 stages"),
    ("idle 1f1b 0 8", "DEVICES must be a whole number of 1 or more"),
    ("idle 1f1b 4 8 --backward -1e400", "--backward is numbers between commas"),
    ("idle 1f1b 4 8 --forward 1,2", "--forward is one number, or 4, one per stage; got 2"),
    ("idle 1f1b 4 8 --latency 1,2", "or 3, one per boundary between stages; got 2"),
    ("idle --diagnose no.csv", "no trace at 'no.csv'"),
    ("idle --diagnose a.csv --figure b.png", "writes no figure"),
    ("idle gpipe --diagnose no.csv", "finds schedule, devices and micro-batches in"),
    # partition
    ("partition 24", "are required: DEVICES"),
    ("partition 2 5", "2 layers are fewer than 5 devices; use at most 2"),
    ("partition 12 5 --chunks 3", "12 layers are fewer than 5 devices x 3 chunks; use at most"),
    ("partition 24 0", "devices must be a whole number of 1 or more"),
    ("partition 24 4 --chunks 0", "--chunks must be a whole number of 1 or more"),
    ("partition 24 4 --speeds 1,2", "got 2 speed values where 4 are needed: one for each"),
    ("partition 24 4 --judge 'a | b'", "cannot read 'a'"),
    ("partition 99999999999 2", "tiledask partition: "),
    # matmul
    ("matmul 64 --algorithm canon", "did you mean 'cannon'?"),
    ("matmul 64 --algorithm local", "there are column_parallel, row_parallel, summa"),
    ("matmul 64 32", "A and B such as 2048x1024 1024x4096"),
    ("matmul 64x32 64x32", "A has 32 columns and B 64 rows"),
    # 70,000,000 / (4 x (2 + 2))
    ("matmul 1000000000 --no-run", "k may be 4,375,000 at most, got 1,000,000,000"),
    ("matmul 64 --workers 0", "--workers must be a whole number of 1 or more"),
    ("matmul 64 --dtype int4", "invalid choice: 'int4'"),
    ("matmul 64 --kernel no", "there is no kernel 'no'"),
    ("matmul -5", "a size must be a whole number of 1 or more, got -5"),
    # ask
    ("ask 34 --set layer=12", "perhaps layers; it has layers=24 devices=4 last_cost=1"),
    ("ask 34 --set layers=24GB", "layers must be a whole number"),
    ("ask 34 --set layers", "as in --set layers=12 devices=3"),
    ("ask 99", "there are 1 to 39"),
    ("ask 22 --set microbatches=3 replicas=4", "take an even number, such as microbatches=4"),
    # puzzle
    ("puzzle 99", "no level 99; the levels are 1 to 19"),
    ("puzzle 24-on-5", "did you mean '24-on-4'"),
    ("puzzle nope", "such as 24-on-4, idle-1 to idle-12, cannon, "),
    ("puzzle 24-on-4 --seed 3", "a seed draws the numbers of idle-1 to idle-12"),
    ("puzzle 24-on-4 --verify", "no argument '--verify'"),
]
PYTHONS = r"forward_only|devices=|stages=|\(128,\)|Traceback"
"""Python's names for what was typed: of what is asked by `ask` alone they are typed."""


@pytest.mark.parametrize(("command", "words"), MISTAKES)
def test_a_mistake_is_one_sentence_in_the_words_of_whoever_types(
    typed, monkeypatch, command, words
):
    monkeypatch.setattr("tiledask.start_cluster", lambda **_: pytest.fail("workers were started"))
    for ran in (typed(command), typed(f"{command} --json")):
        assert (ran.code, ran.out) == (2, "")
        assert words in " ".join(ran.err.split())
        (sentence,) = ran.err.splitlines()
        assert sentence.startswith("tiledask")
        assert command[:3] == "ask" or not re.search(PYTHONS, ran.err)
