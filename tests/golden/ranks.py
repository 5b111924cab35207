"""Golden values of many devices: product plans, collectives and split layers, on threads of this
process; products and redistributions on four workers."""

from typing import Any

import numpy as np

import tiledask as td
from golden.store import MACHINE, GoldenSet, bits, digest, moved, numbers, summary
from golden.tile import dtype_of


def panels_of(plan: Any) -> list[Any]:
    """By rank the panels in their order: the interval of k, and which ranks' pieces."""
    return [
        [[each.depth, [p.source for p in each.a], [p.source for p in each.b]] for each in mine]
        for mine in plan.panels
    ]


def addends_of(plan: Any) -> list[Any]:
    """By rank the partial sums that it adds up, in their order."""
    return [[[p.source, p.region] for p in mine] for mine in plan.partials] if plan.sums else []


def records_of(done: Any, ranks: int) -> list[list[list[Any]]]:
    """By rank what was called, by kind: [kind, calls, sent, received, messages]."""
    found: list[dict[str, list[Any]]] = [{} for _ in range(ranks)]
    for row in done.records:
        counts = found[row.rank].setdefault(row.kind, [row.kind, 0, 0, 0, 0])
        for n, more in enumerate((1, row.sent, row.received, row.messages), 1):
            counts[n] += more
    return [[counts[kind] for kind in sorted(counts)] for counts in found]


def placement(name: str) -> Any:
    """Of "R", "P", "S0", "S1", ..."""
    if name == "R":
        return td.Replicate()
    return td.Partial() if name == "P" else td.Shard(int(name[1:]))


def tiling(shape: list[int], mesh: list[int], placements: list[str]) -> Any:
    return td.Tiling(tuple(shape), tuple(mesh), tuple(map(placement, placements)))


def panel(name: str, given: dict[str, Any]) -> dict[str, Any]:
    """The width of panels, for an algorithm that has them."""
    return {"panel": given["panel"]} if "panel" in td.algorithms[name].options else {}


def planned(given: dict[str, Any]) -> Any:
    """Of each algorithm bytes and messages by rank, and its order."""
    m, k, n = given["extents"]
    a = tiling([m, k], given["mesh"], given["a"])
    b = tiling([k, n], given["mesh"], given["b"])
    found: dict[str, Any] = {}
    for name in td.algorithms:
        try:
            plan = td.algorithms[name](a, b, **panel(name, given))
        except ValueError as refused:
            found[name] = type(refused).__name__
            continue
        traffic = plan.traffic(given["itemsize"], max(4, given["itemsize"]))
        by_rank = moved(traffic)
        if traffic.ranks > 4:
            by_rank |= {"sent": digest(traffic.sent), "received": digest(traffic.received)}
        found[name] = {
            "total": traffic.total,
            **by_rank,
            "order": digest(panels_of(plan), addends_of(plan)),
            "result": str(plan.result),
        }
    return found


def run_product(given: dict[str, Any], cluster: Any) -> Any:
    """Bits of the product by tiles of one column, of numbers whose products are exact: the order of
    sums decides; bytes and messages as measured."""
    m, k, n = given["extents"]
    mesh = td.Mesh(cluster, tuple(given["mesh"]))
    dtype = dtype_of(given["dtype"])
    # of sizes that differ by 2^12, so that sums in another order are rounded otherwise
    spread = np.exp2(np.arange(k) % 13)
    a = td.distribute((numbers(1, m, k) * spread).astype(dtype), mesh, map(placement, given["a"]))
    b = td.distribute(numbers(2, k, n).astype(dtype), mesh, map(placement, given["b"]))
    name = given["algorithm"]
    c = td.matmul(a, b, algorithm=name, kernel="tiled", tile=(8, 8, 1), **panel(name, given))
    return {
        "bits": bits(td.to_numpy(c)),
        "placements": str(c.placements),
        "peak": td.explain(a, b)[name].peak,
        **moved(c.traffic.measured),
    }


def redistributed(given: dict[str, Any], cluster: Any) -> Any:
    """Bits, the collective's name, bytes by rank; partial sums are those of a local product."""
    mesh = td.Mesh(cluster, tuple(given["mesh"]))
    if given["from"] == ["P"]:
        a = td.distribute(
            (numbers(1, 6, 12) * np.exp2(np.arange(12))).astype("f4"), mesh, [td.Shard(1)]
        )
        b = td.distribute(numbers(2, 12, 7, dtype="float32"), mesh, [td.Shard(0)])
        array = td.matmul(a, b, algorithm="local", kernel="tiled", tile=(8, 8, 1))
    else:
        array = td.distribute(numbers(3, 11, 7), mesh, map(placement, given["from"]))
    found = td.redistribute(array, list(map(placement, given["to"])))
    made = {"bits": bits(td.to_numpy(found)), "made_by": str(found.made_by)}
    return made | moved(found.traffic.measured)


def collectives(given: dict[str, Any]) -> Any:
    """Bits of the sums of every collective on threads, and bytes and messages of each."""
    n, dtype = given["ranks"], dtype_of(given["dtype"])

    def program(rank: Any) -> dict[str, Any]:
        group, found = rank.group(), {}
        x = (numbers(rank.index + 1, 7, n + 3) * 2.0 ** (3 * rank.index % 8)).astype(dtype)
        for op in ("sum", "max"):
            found[f"all_reduce {op}"] = group.all_reduce(x, op)
            found[f"reduce_scatter {op}"] = group.reduce_scatter(x, 1, op)
        found["all_gather"] = group.all_gather(x, 1)
        found["all_to_all"] = group.all_to_all(x, 1, 0)
        found["broadcast"] = group.broadcast(x)
        reduced = group.reduce(x)
        found["reduce"] = x if reduced is None else reduced
        found["halo_exchange"] = group.halo_exchange(x, 0, 1, 2, extents=(7,) * n)
        if n > 1:
            found["sendrecv"] = group.sendrecv(x, (rank.index + 1) % n, (rank.index - 1) % n)
        return found

    done = td.run_threads(program, n)
    names = done.results[0]
    return {
        "bits": {name: bits(*(np.asarray(r[name]) for r in done.results)) for name in names},
        "calls": records_of(done, n) if n <= 3 else digest(records_of(done, n)),
    }


# -- split layers ----------------------------------------------------------------------------------

T, L = td.tensor, td.tile.layers
HEADS = {
    "8 heads": (8, 8, 4),
    "shared heads": (8, 2, 4),
    "10 heads": (10, 5, 2),
    "one kv": (3, 1, 4),
}


def parts_of(name: str) -> tuple[str, dict, tuple, Any]:
    """(name of the function, parameters, what it is told, how its weights are split)."""
    fused = "fused" in name
    if "heads" in name or name in HEADS:
        heads = L.Heads(*HEADS[name.removesuffix(" fused")])
        angles = L.rotary_angles(np.arange(7), heads.width, dtype="float64")
        made = L.self_attention_parameters(12, heads, fused, bias=True)
        return "self_attention", made, (heads, angles), lambda t: T.attention_layout(heads, t)
    width = 17 if "17" in name else 16
    if name.startswith("mlp"):
        return "mlp", L.mlp_parameters(12, width), (), lambda t: T.mlp_layout(width, t)
    made = L.swiglu_mlp_parameters(12, width, fused, bias=True)
    return "swiglu_mlp", made, (), lambda t: T.mlp_layout(width, t)


def split_layer(given: dict[str, Any]) -> Any:
    """Whole output and gradients, and what every rank calls."""
    name, made, told, layout = parts_of(given["layer"])
    t = given["ranks"]
    whole = {n: numbers(7 + i, *p.shape) / 2 for i, (n, p) in enumerate(made.items())}
    x, dy = numbers(1, 2, 7, 12), numbers(2, 2, 7, 12)

    def program(rank: Any) -> dict[str, Any]:
        group = rank.group()
        mine = T.shard_weights(group, whole, layout(t))
        spread = [
            T.shard(group, each, 1) if given["sequence"] else T.replicate(each) for each in (x, dy)
        ]
        y, kept = getattr(T, name)(group, spread[0], mine, *told, regather=given["regather"])
        dx, grads = getattr(T, f"{name}_grad")(group, spread[1], kept, mine)
        programs = [str(layer.program) for layer in group.bound.values()]
        return {"y": y, "dx": dx, **grads}, programs

    done = td.run_threads(program, t)
    results = [arrays for arrays, _ in done.results]
    arrays = {n: T.whole_of([r[n] for r in results]) for n in results[0]}
    rows = [
        [[r.label, r.kind, r.sent, r.received, r.messages] for r in done.records.where(rank=rank)]
        for rank in range(t)
    ]
    return {
        "y": summary(arrays["y"]),
        "dx": summary(arrays["dx"]),
        "gradients": summary(np.concatenate([np.ravel(arrays[n]) for n in sorted(made)])),
        "calls": rows[0] if t <= 2 and given["layer"] == "8 heads" else digest(rows),
        "program": digest(done.results[0][1]),
        "totals": [[sum(r[2] for r in rank), sum(r[4] for r in rank)] for rank in rows],
        MACHINE: bits(*arrays.values()),
    }


SETS = (
    GoldenSet("product_plans", planned),
    GoldenSet("collectives", collectives),
    GoldenSet("split_layers", split_layer),
    GoldenSet("products", run_product, "cluster"),
    GoldenSet("redistributions", redistributed, "cluster"),
)
