"""calculon's search of layouts, in a process of its own: JSON out.

    python -I search_peer.py CHECKOUT MODEL SYSTEM PROCESSORS BATCH SAMPLE

Its space is that of its llm-optimal-execution without offloading and overlap, tensor parallelism
on the fast network up to 8 devices. All executions are listed, a random SAMPLE is run and timed.
"""

import json
import logging
import os
import random
import sys
import time

RECOMPUTE = {"full": "full", "attn_only": "selective", "none": "none"}


def executions(Llm, app, processors, batch):
    """All of them, as calculon writes them."""
    for tp in Llm.get_all_tensor_parallelisms(processors, app.hidden, app.attn_heads):
        for pp in Llm.get_all_pipeline_parallelisms(processors, tp, app.num_blocks):
            dp = Llm.get_data_parallelism(processors, tp, pp)
            if batch % dp:
                continue
            for chunks in Llm.get_valid_pipeline_interleavings(app.num_blocks, pp):
                for recompute in RECOMPUTE:
                    for sharded in (True, False) if dp > 1 else (False,):
                        for comm in ("ar", "rs_ag") if tp > 1 else ("ar",):
                            for size in Llm.get_valid_microbatch_sizes(
                                app.seq_size, tp, dp, batch, pp
                            ):
                                yield {
                                    "num_procs": processors,
                                    "tensor_par": tp,
                                    "pipeline_par": pp,
                                    "data_par": dp,
                                    "batch_size": batch,
                                    "tensor_par_net": int(tp > 8),
                                    "pipeline_par_net": 1,
                                    "data_par_net": 1,
                                    "microbatch_size": size,
                                    "datatype": "float16",
                                    "fused_activation": True,
                                    "attention_type": "multihead",
                                    "activation_recompute": recompute,
                                    "pipeline_interleaving": chunks,
                                    "optimizer_sharding": sharded,
                                    "tensor_par_comm_type": comm,
                                    "tensor_par_overlap": "none",
                                    "seq_par_ag_redo": False,
                                    "data_par_overlap": False,
                                    "weight_offload": False,
                                    "activations_offload": False,
                                    "optimizer_offload": False,
                                    "training": True,
                                }


def main(checkout, model, system, processors, batch, sample):
    """Print the executions, and the seconds of each that was run."""
    sys.path.insert(0, checkout)
    from calculon.io import read_json_file
    from calculon.llm import Llm
    from calculon.system import System

    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # one core
    app = Llm.Application(read_json_file(os.path.join(checkout, "models", model + ".json")))
    machine = System(read_json_file(os.path.join(checkout, "systems", system + ".json")))
    log = logging.getLogger("calculon")
    every = list(executions(Llm, app, int(processors), int(batch)))
    chosen = random.Random(0).sample(range(len(every)), min(int(sample), len(every)))
    found, begun = {}, time.process_time()
    for n in chosen:
        try:
            run = Llm(app, log)
            run.compile(machine, Llm.Execution.from_json(every[n]))
            run.run(machine)
            found[n] = run.get_total_time()
        except (Llm.Error, AssertionError):
            found[n] = None
    seconds = time.process_time() - begun
    fields = ("data_par", "tensor_par", "pipeline_par", "microbatch_size", "pipeline_interleaving")
    rows = [
        [
            *(e[f] for f in fields),
            int(e["optimizer_sharding"]),
            RECOMPUTE[e["activation_recompute"]],
            e["tensor_par_comm_type"] == "rs_ag",
        ]
        for e in every
    ]
    return {"rows": rows, "ran": len(chosen), "seconds": seconds, "times": found}


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
