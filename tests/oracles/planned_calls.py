"""What the ranks of a training called, beside what was planned for them."""

from collections import defaultdict

from tiledask.plan.program.count import calls as calls_of


def assert_planned(got):
    """Every rank called in every step what was planned for it, in that order, to the byte; in a
    step that was left out, up to the norm. Messages come in the order of their sender: one that is
    early is taken in the place of another."""
    ran = defaultdict(list)
    for r in got.records:  # once: there are a hundred thousand after fifty steps on 8 ranks
        ran[r.rank, r.step].append((r.label, r.kind, r.sent, r.received, r.messages))
    for rank in range(got.program.ranks):
        calls = [tuple(call) for call in calls_of(got.program, rank)]
        cut = 1 + max((i for i, call in enumerate(calls) if call[0] == "update/norm"), default=-1)
        for step in range(got.config.first, got.config.first + len(got.losses)):
            wanted = calls[:cut] if step in got.skipped else calls
            assert parted(ran[rank, step]) == parted(wanted), f"rank {rank}, step {step}"
    assert not len(got.records.mismatches)


def parted(calls):
    """(what a rank takes, wherever it does; all else, in order)."""
    taken = sorted(call[1:] for call in calls if call[1] == "recv")
    return taken, [call for call in calls if call[1] != "recv"]
