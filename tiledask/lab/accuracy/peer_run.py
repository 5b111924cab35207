"""Another planner asked what the published cases ask, in a process of its own: JSON in and out.

    python -I -B peer_run.py calculon CHECKOUT < questions.json > answers.json

Needs the standard library and the program itself, so that any interpreter that has what the
program imports can run it. Each program is used as its documentation and its examples use it
(peers.SETTINGS says where there was a choice). What a program cannot express is an answer too.
"""

import contextlib
import io
import json
import logging
import os
import re
import sys

__all__ = ["PEERS", "Cannot", "answer", "settle"]

GIB = 2**30
LEVELS = "none", "selective", "full"


class Cannot(Exception):
    """The program has no way to express this; the message is the reason."""


def refuse(*reasons):
    """Raises Cannot with those of (holds, reason) pairs that hold, if any does."""
    found = [reason for holds, reason in reasons if holds]
    if found:
        raise Cannot(", ".join(found))


def settle(run):
    """The runs that one with open settings may mean: micro-batch and recomputation if None."""
    share = (run["batch"] or 0) // run["dp"]
    sizes = [n for n in range(1, share + 1) if share % n == 0] or [1]
    sizes = [run["microbatch"]] if run["microbatch"] else sizes
    levels = [run["recompute"]] if run["recompute"] else LEVELS
    for microbatch in sizes:
        for recompute in levels:
            said = {"microbatch": microbatch, "recompute": recompute}
            yield run | said | {"chosen": len(sizes) * len(levels) > 1}


def answer(peer, question):
    """{"value", "why not", "note"} of one question."""
    what = question["quantity"]
    try:
        refuse((question["cannot"], question["cannot"]))
        if what == "ranking regret":
            value, note = regret(peer, question)
        elif what == "iteration seconds":
            value, note = fastest(peer, question)
        elif what == "fits":
            peak, room = peer.peak_bytes(question), peer.room(question["run"])
            value, note = float(peak <= room), f"{peak / GIB:.1f} of {room / GIB:g} GiB"
        else:
            value, note = getattr(peer, what.replace(" ", "_"))(question), ""
    except Cannot as reason:
        return {"value": None, "why not": str(reason), "note": ""}
    return {"value": value, "why not": "", "note": note}


def fastest(peer, question):
    """Seconds of a step; where settings are open, of the fastest that the program accepts."""
    found, refused = [], None
    for run in settle(question["run"]):
        try:
            seconds = peer.iteration_seconds(question["model"], run)
        except Cannot as reason:
            refused = reason
        else:
            chosen = f"chooses micro-batch {run['microbatch']}, recomputes {run['recompute']}"
            found.append((seconds, chosen if run["chosen"] else ""))
    if not found:
        raise refused
    return min(found)


def regret(peer, question):
    """Measured time of the program's fastest layout over the best measured, minus 1."""
    said, refused = [], None
    for layout in question["candidates"]:
        keys = ("tp", "pp", "dp")
        run = question["run"] | {key: layout[key] for key in keys}
        run |= {"microbatch": layout["micro_batch"], "chosen": False}
        try:
            said.append((peer.iteration_seconds(question["model"], run), layout))
        except Cannot as reason:
            refused = reason
    if not said:
        raise refused
    pick = min(said, key=lambda pair: pair[0])[1]
    best = min(layout["measured_ms"] for layout in question["candidates"])
    note = "picks " + " ".join(f"{k}={pick[k]}" for k in ("tp", "dp", "pp", "micro_batch"))
    note += f"; times {len(said)} of {len(question['candidates'])} candidates"
    return pick["measured_ms"] / best - 1, note


def of_device(run, systems):
    """The program's name for a run's device."""
    name = "H100" if run["gpu"].startswith("H100") else run["gpu"]
    refuse((name not in systems, f"no {name}"))
    return systems[name]


class PeerAnswers:
    """What no program answers unless it says otherwise below."""

    def __getattr__(self, name):
        def unknown(*_):
            raise Cannot(f"predicts no {name.replace('_', ' ')}")

        return unknown


# calculon -------------------------------------------------------------------------------


class Calculon(PeerAnswers):
    """Calculon: its Application, Execution and System, run as its validation runs them."""

    def __init__(self, checkout):
        sys.path.insert(0, checkout)
        from calculon.io import read_json_file
        from calculon.llm import Llm
        from calculon.system import System

        self.llm, self.log = Llm, logging.getLogger("calculon")
        self.system = lambda name: System(
            read_json_file(os.path.join(checkout, "systems", name + ".json"))
        )

    def application(self, m):
        refuse(
            (m["gated"], "no gated MLP"),
            (m["experts"], "no MoE"),
            (m["kv_heads"] not in (1, m["heads"]), "no GQA"),
        )
        return self.llm.Application(
            {
                "hidden": m["hidden"],
                "feedforward": m["ffn"],
                "attn_heads": m["heads"],
                "attn_size": m["hidden"] // m["heads"],
                "num_blocks": m["layers"],
                "seq_size": m["learned_pos"],
            }
        )

    def stats(self, m, r, system):
        refuse(
            (r["cp"] > 1, "no context parallelism"),
            (r["fp8"], "no fp8 mixed with bf16"),
            (r["zero"] > 1, "no ZeRO-2 or 3"),
        )
        app = self.application(m | {"learned_pos": r["seq"] or 2048})
        sharded = r["sequence_parallel"] and r["tp"] > 1
        batch = r["batch"] or r["dp"]
        recompute = {"selective": "attn_only"}.get(r["recompute"], r["recompute"])
        execution = {
            "num_procs": r["tp"] * r["pp"] * r["dp"],
            "tensor_par": r["tp"],
            "pipeline_par": r["pp"],
            "data_par": r["dp"],
            "batch_size": batch,
            "tensor_par_net": 0 if r["tp"] <= 8 else 1,
            "pipeline_par_net": 1,
            "data_par_net": 1,
            "microbatch_size": r["microbatch"] or 1,
            "datatype": "float16",
            "fused_activation": False,
            "attention_type": "multihead",
            "activation_recompute": recompute,
            "pipeline_interleaving": r["interleave"],
            "optimizer_sharding": r["zero"] == 1 and r["dp"] > 1,
            "tensor_par_comm_type": "rs_ag" if sharded else "ar",
            "tensor_par_overlap": "ring" if r["overlap"] and sharded else "none",
            "seq_par_ag_redo": sharded and recompute == "attn_only",
            "data_par_overlap": r["overlap"] and r["dp"] > 1,
            "weight_offload": False,
            "activations_offload": False,
            "optimizer_offload": False,
            "training": True,
        }
        system = self.system(system)
        try:
            model = self.llm(app, self.log)
            model.compile(system, self.llm.Execution.from_json(execution))
            model.run(system)
        except (self.llm.Error, AssertionError) as error:
            raise Cannot(f"refuses: {str(error) or 'an assertion of its own'}") from None
        return model.get_stats_json(False)

    def parameters(self, q):
        app = self.application(q["model"])
        refuse(
            (q["key"] == "non_embedding_params", "prints one total, embedding included"),
            (not q["model"]["learned_pos"], "always has learned positions"),
        )
        return app.num_parameters()

    def state_bytes(self, q):
        found = self.stats(q["model"], q["run"], "a100_80e")
        return found["weight_space"] + found["weight_grad_space"] + found["optimizer_space"]

    def activation_bytes(self, q):
        found = self.stats(q["model"], q["run"], "a100_80e")
        kept = "act_checkpoint_size" if q["run"]["recompute"] == "full" else "act_space"
        return found[kept]

    def peak_bytes(self, q):
        return self.stats(q["model"], q["run"], "a100_80e")["proc_mem_tier1_cap_req"]

    def room(self, run):
        return self.system("a100_80g").mem1.capacity

    def iteration_seconds(self, model, run):
        system = of_device(run, {"H100": "h100_80g_nvl8", "A100-80GB": "a100_80g"})
        return self.stats(model, run, system)["total_time"]

    def layer_seconds(self, q):
        found = self.stats(q["model"], q["run"], "a100_80g")
        return (found["total_time"] - found["optim_step_time"]) / q["model"]["layers"]


# llm-analysis ---------------------------------------------------------------------------


class LlmAnalysis(PeerAnswers):
    """llm-analysis: its LLMAnalysis and training()."""

    def __init__(self, checkout):
        sys.path.insert(0, checkout)
        from llm_analysis import analysis, config

        logging.disable(logging.CRITICAL)
        self.analysis, self.config = analysis, config

    def of(self, m, r):
        refuse(
            (r["cp"] > 1, "no context parallelism"),
            (r["fp8"], "no fp8"),
            (r["tp"] > 8, "no tensor parallelism over more than a node of 8"),
        )
        config = self.config
        gpu = of_device(
            r, {"H100": "h100-sxm-80gb", "A100-80GB": "a100-sxm-80gb", "A100-40GB": "a100-sxm-40gb"}
        )
        return self.analysis.LLMAnalysis(
            self.model(m, r["seq"] or 2048),
            config.get_gpu_config_by_name(gpu),
            config.get_dtype_config_by_name("w16a16e16"),
            config.ParallelismConfig(
                tp_size=r["tp"],
                pp_size=r["pp"],
                dp_size=r["dp"] if r["zero"] else 1,
                rdp_size=1 if r["zero"] else r["dp"],
                sp_size=r["tp"] if r["sequence_parallel"] else 1,
            ),
            flops_efficiency=0.5,
            hbm_memory_efficiency=0.9,
        )

    def model(self, m, sequence):
        return self.config.ModelConfig(
            name="case",
            num_layers=m["layers"],
            n_head=m["heads"],
            hidden_dim=m["hidden"],
            vocab_size=m["vocab"],
            max_seq_len=sequence,
            num_key_value_heads=m["kv_heads"],
            ffn_embed_dim=m["ffn"],
            moe_num_experts=m["experts"] or 1,
            moe_top_k=m["top_k"] or 1,
            mlp_gated_linear_units=m["gated"],
        )

    def level(self, recompute):
        levels = self.analysis.ActivationRecomputation
        names = {"none": "NONE", "selective": "ATTN_COMPUTE", "full": "FULL"}
        return levels[names[recompute]]

    def summary(self, m, r):
        try:
            return self.of(m, r).training(
                batch_size_per_gpu=r["microbatch"] or 1,
                global_batch_size=r["batch"],
                seq_len=r["seq"],
                activation_recomputation=self.level(r["recompute"]),
                ds_zero=self.analysis.DSZeRO(r["zero"]),
                flash_attn=r["flash"],
                softmax_dropout=r["dropout"],
            )
        except AssertionError as error:
            raise Cannot(f"refuses: {error}") from None

    def parameters(self, q):
        found = self.analysis.LLMAnalysis(
            self.model(q["model"], 2048), self.config.get_gpu_config_by_name("a100-sxm-80gb")
        )
        if q["key"] == "active_params":
            return found.get_num_active_params_total()
        embedding = found.get_num_params_embedding()
        return found.get_num_params_total() - (q["key"] == "non_embedding_params") * embedding

    def state_bytes(self, q):
        of, zero = self.of(q["model"], q["run"]), self.analysis.DSZeRO(q["run"]["zero"])
        weights = of.get_weight_memory_per_layer(is_sharded=True, ds_zero=zero)
        rest = sum(of.get_memory_optimizer_state_and_gradient_per_layer(ds_zero=zero))
        layers = q["model"]["layers"] // q["run"]["pp"]
        extra = 0
        if q["key"] == "state_bytes_with_emb":
            extra = of.get_memory_embedding(zero)
            extra += sum(of.get_memory_optimizer_state_and_gradient_embedding(ds_zero=zero))
        return layers * (weights + rest) + extra

    def activation_bytes(self, q):
        r = q["run"]
        layer = self.of(q["model"], r).get_activation_memory_per_layer(
            r["microbatch"],
            r["seq"],
            is_inference=False,
            activation_recomputation=self.level(r["recompute"]),
            flash_attn=r["flash"],
            softmax_dropout=r["dropout"],
        )
        return layer * q["model"]["layers"]  # a first stage holds as much, it says

    def peak_bytes(self, q):
        return self.summary(q["model"], q["run"])["estimated_peak_memory_per_gpu"]

    def room(self, run):
        return self.config.get_gpu_config_by_name("a100-sxm-80gb").mem_per_GPU_in_GB * GIB

    def iteration_seconds(self, model, run):
        found = self.summary(model, run)
        if run["chosen"]:  # it warns of what does not fit; whoever has a choice takes what fits
            peak = found["estimated_peak_memory_per_gpu"]
            refuse((peak > self.room(run), f"says {peak / GIB:.1f} GiB do not fit"))
        return found["latency_per_iter"]

    def layer_seconds(self, q):
        run, few = q["run"] | {"chosen": False}, q["model"]["layers"]
        times = [self.iteration_seconds(q["model"] | {"layers": n}, run) for n in (few, 2 * few)]
        return (times[1] - times[0]) / few

    def GPU_hours(self, q):
        size = re.search(r"\d+b$", q["run"]["example"])[0]
        tokens = {"13b": 1e12, "65b": 1.4e12}[size]
        return self.analysis.train(
            model_name=f"decapoda-research_llama-{size}-hf",
            gpu_name="a100-sxm-80gb",
            total_num_tokens=tokens,
            activation_recomputation=1,
            tp_size=8,
            pp_size=8,
            sp_size=8,
            global_batch_size=4000000,
            total_num_gpus=2048,
            flops_efficiency=0.5,
            hbm_memory_efficiency=0.9,
            log_level="CRITICAL",
        )["gpu_hours"]


# EleutherAI cookbook --------------------------------------------------------------------


class EleutherAI(PeerAnswers):
    """EleutherAI's scripts, by their command lines, and what they print."""

    def __init__(self, checkout):
        sys.path.insert(0, os.path.join(checkout, "calc"))
        import calc_transformer_mem as memory
        import calc_transformer_params as parameters

        self.scripts = {"mem": (memory, "calc_mem"), "params": (parameters, "calc_params")}

    def printed(self, script, arguments):
        """{label: number} of the lines that it prints."""
        module, function = self.scripts[script]
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            args = module.config_parser().parse_args(list(map(str, arguments)))
            getattr(module, function)(args)
        units = {"GiB": GIB, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12, "": 1}
        lines = re.findall(r"^(.+): ([\d.]+) ?(\w*) ?$", said.getvalue(), re.MULTILINE)
        return {label: float(number) * units[unit] for label, number, unit in lines}

    def shape(self, m):
        expansion = m["ffn"] / m["hidden"]
        return [
            "--hidden-size",
            m["hidden"],
            "--num-layers",
            m["layers"],
            "--vocab-size",
            m["vocab"],
            "--num-mlp-linears",
            3 if m["gated"] else 2,
            "--kv-size-ratio",
            m["kv_heads"] / m["heads"],
            "--ffn-expansion-factor",
            int(expansion) if expansion == int(expansion) else expansion,
        ]

    def parameters(self, q):
        m = q["model"]
        refuse((q["key"] == "active_params", "no active parameters"))
        arguments = self.shape(m)
        if m["learned_pos"]:
            arguments += ["--sequence-length", m["learned_pos"]]
        if m["ffn"] % m["hidden"]:
            experts = ["--num-experts", m["experts"]] if m["experts"] else []
            said = self.printed("mem", arguments + experts)
            return said.get("Total Number of MoE Parameters", said["Number of Parameters"])
        if m["experts"]:
            arguments += ["--moe", "--num-experts", m["experts"], "--topk", m["top_k"]]
        said = self.printed("params", arguments + ["--tied-embeddings"] * m["tied"])
        if q["key"] == "non_embedding_params":
            return said["Attention parameters"] + said["FFN parameters"]
        return said["Total Params in the Model"]

    def memory(self, m, r):
        refuse((r["cp"] > 1, "no context parallelism"), (r["fp8"], "no fp8 mixed with bf16"))
        arguments = [
            *self.shape(m),
            "--num-attention-heads",
            m["heads"],
            "--num-gpus",
            r["gpus"],
            "--tensor-parallel-size",
            r["tp"],
            "--pipeline-parallel-size",
            r["pp"],
            "--zero-stage",
            r["zero"],
            "--sequence-length",
            r["seq"] or 2048,
            "--batch-size-per-gpu",
            r["microbatch"] or 1,
            "--bytes-per-grad-ele",
            r["grad_bytes"],
        ]
        arguments += ["--partition-activations"] * (r["tp"] > 1)
        return self.printed(
            "mem", arguments + ["--checkpoint-activations"] * (r["recompute"] != "none")
        )

    def state_bytes(self, q):
        without = 0 if q["key"] != "state_bytes_with_emb" else q["model"]["vocab"]
        said = self.memory(q["model"] | {"vocab": without}, q["run"])
        parts = "Model", "Gradient", "Optimizer"
        return sum(v for k, v in said.items() if re.match(rf"Per-GPU ({'|'.join(parts)})", k))

    def activation_bytes(self, q):
        return self.memory(q["model"], q["run"])["Per-GPU Activation Memory"]

    def peak_bytes(self, q):
        return self.memory(q["model"], q["run"])["Per-GPU Memory Required for Training"]

    def room(self, run):
        return 80 * GIB

    def iteration_seconds(self, *_):
        raise Cannot("no time")

    layer_seconds = GPU_hours = iteration_seconds


PEERS = {"calculon": Calculon, "llm-analysis": LlmAnalysis, "eleutherai": EleutherAI}

if __name__ == "__main__":
    _, name, checkout = sys.argv
    asked = json.load(sys.stdin)
    with contextlib.redirect_stdout(sys.stderr):  # a program may print; the answers stay alone
        peer = PEERS[name](checkout)
        answers = [answer(peer, question) for question in asked]
    print(json.dumps(answers))
