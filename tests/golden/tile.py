"""Golden values of one device: kernels' products and bounds, layers there and back, steps of
optimizers, draws."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

import tiledask as td
from golden.store import MACHINE, GoldenSet, bits, digest, numbers, picked, summary

# -- names that may change -------------------------------------------------------------------------

L, O = td.tile.layers, td.tile.optimizers


def optimizer(kind: str, lr: float, eps: float | None = None, **options: Any) -> Any:
    """A rule by the usual names of its options."""
    if eps is not None:
        options["tiny"] = eps
    return {"sgd": O.SGD, "adam": O.Adam, "adamw": O.AdamW}[kind](rate=lr, **options)


def states_of(state: Any) -> dict[str, dict[str, np.ndarray]]:
    """Class of tensor -> name -> array of a training's state."""
    master = {"master weights": state.master} if state.master else {}
    return {"weights": state.weights, **master, **state.moments}


def begun(weights: dict[str, np.ndarray], rule: Any, recipe: str) -> Any:
    """The state that a recipe keeps; its halves are fp16."""
    kept = {s.tensor: f"float{8 * s.bytes}" for s in td.load_recipe(recipe).states}
    state = O.begin(weights, rule, kept["weights"], master="master weights" in kept)
    moments = {
        tensor: {n: x.astype(kept[tensor]) for n, x in arrays.items()}
        for tensor, arrays in state.moments.items()
    }
    return replace(state, moments=moments)


def dtype_of(name: str) -> Any:
    return np.dtype(ml_dtypes.bfloat16) if name == "bfloat16" else np.dtype(name)


def predicted(given: dict[str, Any]) -> Any:
    """Of each size what binds, seconds, and of each level its tile, bytes and intensity."""
    config = td.tile.config_of(given["kernel"], given["dtype"])
    found = {"blocks": td.tile.occupancy(config, given["device"]).blocks}
    for m, n, k in given["sizes"]:
        bound = td.tile.predict(m, n, k, config, given["device"])
        levels = td.tile.levels_of(m, n, k, config, given["device"]).levels
        of_level = {x.name: [*x.tile, x.loaded, x.stored, x.intensity] for x in levels}
        found[f"{m}x{n}x{k}"] = picked(bound, "binding seconds") | of_level
    return found


def traffic(given: dict[str, Any]) -> Any:
    """Bytes that tiles load and store, and what kernels allocate beside."""
    extents, size = given["extents"], given["itemsize"]
    found = td.tile.traffic(*extents, tuple(given["tile"]), size, given["accumulate"])
    large, larger = ([each * times for each in extents] for times in (8, 32))
    workers = tuple(given["workers"])
    level = td.tile.levels_of(*larger, "smem_tiled", "H200", workers=workers)["between workers"]
    hows: list[dict[str, Any]] = [{}, {"accumulate": True}]
    hows += [{"bias_itemsize": size, "activation": "gelu"}, {"out_itemsize": {2: 4}.get(size)}]
    return {
        "bytes": [found.a, found.b, found.c, found.tiles],
        "between workers": [*level.tile, level.loaded],
        "workspace": {
            kernel: [td.tile.workspace(*large, size, kernel, **how) for how in hows]
            for kernel in ("blas", "tiled")
        },
    }


def kernel_bits(given: dict[str, Any]) -> Any:
    """Bits of a product by definition, and by tiles of one column: whatever library there is. Of
    the library's own product the bits depend on the machine."""
    (m, n, k), dtype = given["extents"], dtype_of(given["dtype"])
    a, b, c = (numbers(i, *s).astype(dtype) for i, s in enumerate([(m, k), (k, n), (m, n)]))
    told = {"beta": given["beta"], "bias": numbers(7, n).astype(dtype) if given["bias"] else None}
    found = {}
    for kernel, tile in (("loops", None), ("tiled", tuple(given["tile"])), ("blas", None)):
        out = td.tile.matmul(a, b, kernel, tile, out=c.copy(), **told)
        found[kernel] = bits(out)
    return {"loops": found["loops"], "tiled": found["tiled"], MACHINE: found["blas"]}


# -- layers ----------------------------------------------------------------------------------------


HEADS = L.Heads(4, 2, 6)
TARGETS = np.array([[0, 3, 23, -100, 7], [1, 1, 2, 22, 11]])
TOKENS = np.array([[0, 3, 8, 3, 7], [1, 1, 2, 8, 0]])


class Given(NamedTuple):
    """x and dy of every layer: two sequences of five tokens."""

    x: np.ndarray
    dy: np.ndarray

    def arrays(self, seed: int, *shapes: tuple[int, ...]) -> list[np.ndarray]:
        return [numbers(seed + i, *s).astype(self.x.dtype) for i, s in enumerate(shapes)]

    def angles(self) -> Any:
        return L.rotary_angles(np.arange(5), 6, dtype=self.x.dtype)

    def by_head(self) -> "Given":
        """[2, 4 heads, 5, 6]."""
        return Given(*(each.reshape(2, 5, 4, 6).swapaxes(1, 2).copy() for each in self))


Layer = Callable[[Given], list]


def both(name: str, dy: Any, *operands: Any, again: Sequence[Any] = (), **options: Any) -> list:
    """y and the gradients of a layer; ``again``: what its gradient takes once more."""
    y, kept = getattr(L, name)(*operands, **options)
    dy = numbers(63, *y.shape).astype(y.dtype) if dy is None else dy
    found, arrays = getattr(L, f"{name}_grad")(dy, kept, *again), [y]
    for part in found if isinstance(found, tuple) else (found,):
        arrays += part.values() if isinstance(part, dict) else [part]
    return arrays


def of_x(name: str, *shapes: tuple[int, ...], **options: Any) -> Layer:
    """A layer of x and arrays of these shapes."""

    def layer(given: Given) -> list:
        others = given.arrays(41, *shapes)
        return both(name, given.dy, given.x, *others, again=others, **options)

    return layer


def of_weights(name: str, made: dict[str, Any], *told: Any) -> Layer:
    """A layer of x and weights by name; ``told`` what it takes besides."""

    def layer(given: Given) -> list:
        drawn = given.arrays(31, *(p.shape for p in made.values()))
        w = {n: each / 2 for n, each in zip(made, drawn, strict=True)}
        more = [given.angles() if each == "angles" else each for each in told]
        return both(name, given.dy, given.x, w, *more, again=[w])

    return layer


def of_images(name: str, *told: Any, weights: tuple[int, ...] = (), **options: Any) -> Layer:
    def layer(given: Given) -> list:
        images, others = given.x.reshape(2, 2, 10, 6), []
        if weights:
            others = given.arrays(61, weights, weights[:1])
        return both(name, None, images, *others, *told, again=others, **options)

    return layer


def attended(causal: bool) -> Layer:
    def layer(given: Given) -> list:
        q, dy = given.by_head()
        k, v = q[:, :2].copy(), q[:, 2:, ::-1].copy()
        return both("attention", dy, q, k, v, kv_of=(0, 0, 1, 1), causal=causal)

    return layer


def loss(smoothing: float) -> Layer:
    return lambda given: both("cross_entropy", 1.0, given.x, TARGETS, smoothing=smoothing)


fused, swiglu = {"fused": True, "bias": True}, L.swiglu_mlp_parameters
LAYERS: dict[str, Layer] = {
    **{name: of_x(name) for name in ("relu", "gelu", "silu", "softmax")},
    "swiglu": lambda given: both("swiglu", given.dy, given.x, given.x[:, ::-1].copy()),
    "layer norm": of_x("layer_norm", (24,), (24,)),
    "layer norm without bias": of_x("layer_norm", (24,)),
    "RMS norm": of_x("rms_norm", (24,)),
    "linear": of_x("linear", (24, 24), (24,)),
    "linear without bias": of_x("linear", (24, 24)),
    "feed-forward": of_weights("mlp", L.mlp_parameters(24, 32)),
    "feed-forward, ReLU": of_weights("mlp", L.mlp_parameters(24, 17), "relu"),
    "SwiGLU": of_weights("swiglu_mlp", swiglu(24, 20)),
    "SwiGLU, fused": of_weights("swiglu_mlp", swiglu(24, 20, **fused)),
    "self-attention": of_weights(
        "self_attention", L.self_attention_parameters(24, HEADS), HEADS, "angles"
    ),
    "self-attention, fused": of_weights(
        "self_attention", L.self_attention_parameters(24, HEADS, **fused), HEADS
    ),
    "attention": attended(causal=True),
    "attention both ways": attended(causal=False),
    "rotary": lambda given: both("rotate", given.by_head().dy, given.by_head().x, given.angles()),
    "cross entropy": loss(0.0),
    "smoothed cross entropy": loss(0.1),
    "embedding": lambda given: both("embedding", given.dy, TOKENS, *given.arrays(51, (9, 24))),
    "convolution": of_images("conv2d", weights=(3, 2, 3, 3), padding=1),
    "convolution, strided": of_images("conv2d", weights=(4, 2, 2, 3), stride=2, dilation=(2, 1)),
    "average": of_images("avg_pool2d", 2),
    "average, padded": of_images("avg_pool2d", 3, 2, 1),
    "maximum": of_images("max_pool2d", 2),
    "maximum, overlapping": of_images("max_pool2d", 3, 1, 1),
}


def layer(given: dict[str, Any]) -> Any:
    """Output and gradients in double precision; their bits in every precision."""
    found: dict[str, Any] = {MACHINE: {}}
    for name in ("float64", "float32", "float16", "bfloat16"):
        dtype = dtype_of(name)
        drawn = Given(*(2 * numbers(i, 2, 5, 24).astype(dtype) for i in (1, 2)))
        arrays = [np.asarray(a) for a in LAYERS[given["layer"]](drawn) if a is not None]
        found[MACHINE][name] = bits(*arrays)
        if name == "float64":
            found["arrays"] = [summary(a) for a in arrays]
    return found


def stepped(given: dict[str, Any]) -> Any:
    """Bits of everything that is kept, after one step and after three; of clipped gradients the
    norm is a sum that the machine rounds."""
    rule = optimizer(**given["rule"])
    dtype = dtype_of(given.get("dtype", "float32"))
    w = {"a": numbers(1, 6, 7), "b": numbers(2, 5)}
    cast = {n: x.astype(dtype if "recipe" not in given else "float32") for n, x in w.items()}
    state = begun(cast, rule, given["recipe"]) if "recipe" in given else O.begin(cast, rule)
    scale = O.LossScale(given["scale"], interval=2) if "scale" in given else None
    found, norms = [], []
    for t in range(3):
        grads = {n: numbers(10 + t, *x.shape).astype(x.dtype) for n, x in state.weights.items()}
        if scale:
            grads = {n: (g * scale.scale).astype(g.dtype) for n, g in grads.items()}
            if t == 1:
                grads["b"][0] = np.inf
        state, scale, norm = O.advance(state, rule, grads, scale, limit=given.get("clip"))
        norms.append(norm)
        kept = states_of(state)
        found.append(
            {tensor: bits(*arrays.values()) for tensor, arrays in kept.items()}
            if t != 1
            else bits(*(a for arrays in kept.values() for a in arrays.values()))
        )
    types = {t: next(iter(a.values())).dtype.name for t, a in states_of(state).items()}
    result = {"types": types, "taken": state.t, "scale": scale and scale.scale}
    if "clip" in given:
        return result | {MACHINE: [found, norms]}
    return result | {"after": found}


def drawn(given: dict[str, Any]) -> Any:
    """What training begins with: the same numbers on every device, whatever part it draws."""
    kind = given["kind"]
    if kind == "weights":
        made = L.self_attention_parameters(12, L.Heads(2, 2, 6), bias=True)
        made |= L.mlp_parameters(12, 9)
        whole = L.initialise(made, 3, prefix="layer 0.", dtype="float64")
        part = L.draw(made["w_1"], 3, "layer 0.w_1", (slice(2, 9), slice(1, 4)), dtype="float64")
        return {
            **{name: summary(w) for name, w in whole.items()},
            "part": bool((part == whole["w_1"][2:9, 1:4]).all()),
            MACHINE: bits(*whole.values()),
        }
    at = np.arange(50, dtype="uint64")
    key = L.key(1, "layer", 2)
    if kind == "uniforms":
        return {"key": str(key), "bits": bits(L.uniforms(key, at))}
    if kind == "normals":
        return {"numbers": summary(L.normals(key, at)), MACHINE: bits(L.normals(key, at))}
    if kind == "text":
        text = td.load_text("tales")
        batches = [b for n in range(3) for b in text.batch(7, n, 4, 9)]
        drawn = bits(*(np.asarray(b, "int64") for b in batches))
        return {"vocabulary": text.vocabulary, "batches": drawn}
    images = td.load_images("digits")
    batches = [b for n in range(3) for b in images.batch(7, n, 4)]
    labels = digest(images.labels[:50])
    return {"classes": images.classes, "batches": bits(*batches), "labels": labels}


SETS = (
    GoldenSet("tiles", predicted),
    GoldenSet("tile_bytes", traffic),
    GoldenSet("kernels", kernel_bits),
    GoldenSet("layers", layer),
    GoldenSet("optimizers", stepped),
    GoldenSet("draws", drawn),
)
