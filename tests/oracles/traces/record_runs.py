"""Records the CSV files beside it: runs of our own cluster, only who was busy from when to when.

python record_runs.py
"""

from pathlib import Path

import tiledask as td

RUNS = {
    "layer_wise": ("naive", 4, 1, {}),
    "gpipe_few": ("gpipe", 4, 3, {}),
    "1f1b_slow_second": ("1f1b", 4, 8, {"slow": 1}),
    "1f1b_slow_links": ("1f1b", 3, 6, {"latency": 0.15}),
}

if __name__ == "__main__":
    with td.start_cluster(workers=4, device="cpu", quiet=True) as cluster:
        for name, (schedule, p, m, wrong) in RUNS.items():
            forward = [0.1 if s == wrong.get("slow") else 0.04 for s in range(p)]
            run = td.run_schedule(
                td.schedule(schedule, p, m),
                cluster=cluster,
                engine="loop",
                forward=forward,
                backward=[2 * f for f in forward],
                latency=wrong.get("latency", 0.0),
            )
            frame = run.timeline.to_frame()
            frame = frame[frame.kind != "T"][["device", "start", "end"]]
            frame.to_csv(Path(__file__).parent / f"{name}.csv", index=False, float_format="%.6f")
