"""Golden values of one device: kernels' products and bounds, layers there and back, steps of
optimizers, draws."""

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np

import tiledask as td
from golden.store import MACHINE, GoldenSet, bits, digest, numbers, summary

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


# -- which tile, and how fast ----------------------------------------------------------------------


def predicted(given: dict[str, Any]) -> Any:
    """Of each size what binds, seconds, and of each level its tile, bytes and intensity."""
    try:
        config = td.tile.config_of(given["kernel"], given["dtype"])
        found = {"blocks": td.tile.occupancy(config, given["device"]).blocks}
        for m, n, k in given["sizes"]:
            bound = td.tile.predict(m, n, k, config, given["device"])
            levels = td.tile.levels_of(m, n, k, config, given["device"]).levels
            found[f"{m}x{n}x{k}"] = {
                "binding": bound.binding,
                "seconds": bound.seconds,
                **{x.name: [*x.tile, x.loaded, x.stored, x.intensity] for x in levels},
            }
    except ValueError as refused:
        return {"refused": type(refused).__name__}
    return found


def traffic(given: dict[str, Any]) -> Any:
    """Bytes that tiles load and store, and what kernels allocate beside."""
    m, n, k = given["extents"]
    size = given["itemsize"]
    found = td.tile.traffic(m, n, k, tuple(given["tile"]), size, given["accumulate"])
    levels = td.tile.levels_of(
        32 * m, 32 * n, 32 * k, "smem_tiled", "H200", workers=tuple(given["workers"])
    )
    half = {2: 4}.get(size)
    return {
        "bytes": [found.a, found.b, found.c, found.tiles],
        "between workers": [*levels["between workers"].tile, levels["between workers"].loaded],
        "workspace": {
            kernel: [
                td.tile.workspace(8 * m, 8 * n, 8 * k, size, kernel),
                td.tile.workspace(8 * m, 8 * n, 8 * k, size, kernel, accumulate=True),
                td.tile.workspace(
                    8 * m, 8 * n, 8 * k, size, kernel, bias_itemsize=size, activation="gelu"
                ),
                td.tile.workspace(8 * m, 8 * n, 8 * k, size, kernel, out_itemsize=half),
            ]
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


def heads() -> Any:
    return L.Heads(4, 2, 6)


def angles(dtype: Any) -> Any:
    return L.rotary_angles(np.arange(5), 6, dtype=dtype)


def weights_of(made: dict[str, Any], dtype: Any) -> dict[str, np.ndarray]:
    return {n: numbers(31 + i, *p.shape).astype(dtype) / 2 for i, (n, p) in enumerate(made.items())}


def with_weights(name: str, made: dict[str, Any], *more: Any) -> Any:
    def there_and_back(x: np.ndarray, dy: np.ndarray, dtype: Any) -> list[np.ndarray]:
        w = weights_of(made, dtype)
        told = [each(dtype) if callable(each) else each for each in more]
        y, kept = getattr(L, name)(x, w, *told)
        dx, grads = getattr(L, f"{name}_grad")(dy, kept, w)
        return [y, dx, *grads.values()]

    return there_and_back


def of_one(name: str, *shapes: tuple[int, ...], **options: Any) -> Any:
    """A layer of x and arrays of these shapes, whose gradient takes them again."""

    def there_and_back(x: np.ndarray, dy: np.ndarray, dtype: Any) -> list[np.ndarray]:
        others = [numbers(41 + i, *s).astype(dtype) for i, s in enumerate(shapes)]
        y, kept = getattr(L, name)(x, *others, **options)
        back = getattr(L, f"{name}_grad")(dy, kept, *others)
        return [y, *(back if isinstance(back, tuple) else (back,))]

    return there_and_back


def alone(name: str) -> Any:
    def there_and_back(x: np.ndarray, dy: np.ndarray, dtype: Any) -> list[np.ndarray]:
        y, kept = getattr(L, name)(x)
        return [y, getattr(L, f"{name}_grad")(dy, kept)]

    return there_and_back


def swiglu(x: np.ndarray, dy: np.ndarray, dtype: Any) -> list[np.ndarray]:
    y, kept = L.swiglu(x, x[:, ::-1].copy())
    return [y, *L.swiglu_grad(dy, kept)]


def loss(x: np.ndarray, dy: np.ndarray, dtype: Any, smoothing: float = 0.0) -> list[np.ndarray]:
    targets = np.array([[0, 3, 23, -100, 7], [1, 1, 2, 22, 11]])
    y, kept = L.cross_entropy(x, targets, smoothing=smoothing)
    return [y, L.cross_entropy_grad(1.0, kept)]


def smoothed(x: np.ndarray, dy: np.ndarray, dtype: Any) -> list[np.ndarray]:
    return loss(x, dy, dtype, smoothing=0.1)


def embedding(x: np.ndarray, dy: np.ndarray, dtype: Any) -> list[np.ndarray]:
    tokens = np.array([[0, 3, 8, 3, 7], [1, 1, 2, 8, 0]])
    y, kept = L.embedding(tokens, numbers(51, 9, 24).astype(dtype))
    return [y, L.embedding_grad(dy, kept)]


def rotated(x: np.ndarray, dy: np.ndarray, dtype: Any) -> list[np.ndarray]:
    x, dy = (each.reshape(2, 5, 4, 6).swapaxes(1, 2).copy() for each in (x, dy))
    y, kept = L.rotate(x, angles(dtype))
    return [y, L.rotate_grad(dy, kept)]


def attended(causal: bool = True) -> Any:
    def there_and_back(x: np.ndarray, dy: np.ndarray, dtype: Any) -> list[np.ndarray]:
        q, dy = (each.reshape(2, 5, 4, 6).swapaxes(1, 2).copy() for each in (x, dy))
        k, v = q[:, :2].copy(), q[:, 2:, ::-1].copy()
        y, kept = L.attention(q, k, v, kv_of=(0, 0, 1, 1), causal=causal)
        return [y, *L.attention_grad(dy, kept)]

    return there_and_back


def convolution(name: str, *told: Any, weights: tuple[int, ...] = (), **options: Any) -> Any:
    def there_and_back(x: np.ndarray, dy: np.ndarray, dtype: Any) -> list[np.ndarray]:
        image = x.reshape(2, 2, 10, 6)
        others = []
        if weights:
            others = [numbers(61, *weights).astype(dtype), numbers(62, weights[0]).astype(dtype)]
        y, kept = getattr(L, name)(image, *(others or told), **options)
        dy = numbers(63, *y.shape).astype(dtype)
        back = getattr(L, f"{name}_grad")(dy, kept, *others)
        return [y, *(back if isinstance(back, tuple) else (back,))]

    return there_and_back


SAME = (2, 5, 24)
"""x and dy of every layer: two sequences of five tokens."""
LAYERS = {
    "relu": alone("relu"),
    "gelu": alone("gelu"),
    "silu": alone("silu"),
    "softmax": alone("softmax"),
    "swiglu": swiglu,
    "layer norm": of_one("layer_norm", (24,), (24,)),
    "layer norm without bias": of_one("layer_norm", (24,)),
    "RMS norm": of_one("rms_norm", (24,)),
    "linear": of_one("linear", (24, 24), (24,)),
    "linear without bias": of_one("linear", (24, 24)),
    "feed-forward": with_weights("mlp", L.mlp_parameters(24, 32)),
    "feed-forward, ReLU": with_weights("mlp", L.mlp_parameters(24, 17), "relu"),
    "SwiGLU": with_weights("swiglu_mlp", L.swiglu_mlp_parameters(24, 20)),
    "SwiGLU, fused": with_weights("swiglu_mlp", L.swiglu_mlp_parameters(24, 20, True, bias=True)),
    "self-attention": with_weights(
        "self_attention", L.self_attention_parameters(24, heads()), heads(), angles
    ),
    "self-attention, fused": with_weights(
        "self_attention", L.self_attention_parameters(24, heads(), True, True), heads()
    ),
    "attention": attended(),
    "attention both ways": attended(causal=False),
    "rotary": rotated,
    "cross entropy": loss,
    "smoothed cross entropy": smoothed,
    "embedding": embedding,
    "convolution": convolution("conv2d", weights=(3, 2, 3, 3), padding=1),
    "convolution, strided": convolution("conv2d", weights=(4, 2, 2, 3), stride=2, dilation=(2, 1)),
    "convolution in groups": convolution("conv2d", weights=(4, 1, 3, 3), groups=2),
    "average": convolution("avg_pool2d", 2),
    "average, padded": convolution("avg_pool2d", 3, 2, 1),
    "maximum": convolution("max_pool2d", 2),
    "maximum, overlapping": convolution("max_pool2d", 3, 1, 1),
}


def layer(given: dict[str, Any]) -> Any:
    """Output and gradients in double precision; their bits in every precision."""
    found: dict[str, Any] = {MACHINE: {}}
    for name in ("float64", "float32", "float16", "bfloat16"):
        dtype = dtype_of(name)
        x, dy = (2 * numbers(i, *SAME).astype(dtype) for i in (1, 2))
        arrays = [np.asarray(a) for a in LAYERS[given["layer"]](x, dy, dtype) if a is not None]
        found[MACHINE][name] = bits(*arrays)
        if name == "float64":
            found["arrays"] = [summary(a) for a in arrays]
    return found


# -- steps -----------------------------------------------------------------------------------------


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


# -- draws and data --------------------------------------------------------------------------------


def drawn(given: dict[str, Any]) -> Any:
    """What training begins with: the same numbers on every device, whatever part it draws."""
    kind = given["kind"]
    if kind == "weights":
        made = L.self_attention_parameters(12, L.Heads(2, 2, 6), bias=True) | L.mlp_parameters(
            12, 9
        )
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
        return {
            "vocabulary": text.vocabulary,
            "batches": bits(*(np.asarray(b, "int64") for b in batches)),
        }
    images = td.load_images("digits")
    batches = [b for n in range(3) for b in images.batch(7, n, 4)]
    return {
        "classes": images.classes,
        "batches": bits(*batches),
        "labels": digest(images.labels[:50]),
    }


SETS = (
    GoldenSet("tiles", predicted),
    GoldenSet("tile_bytes", traffic),
    GoldenSet("kernels", kernel_bits),
    GoldenSet("layers", layer),
    GoldenSet("optimizers", stepped),
    GoldenSet("draws", drawn),
)
