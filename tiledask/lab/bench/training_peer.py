"""One rank of the small GPT in torch, over gloo: the peer beside tiledask's ranks.

    python -I training_peer.py FOLDER RANK RANKS      a line of JSON in: a job; a line out: found

Needs nothing but torch and NumPy. Layers are written as picotron writes them: column- and
row-parallel linear layers between f and g, vocabulary-parallel embedding and loss, gradients
summed over copies in one flat buffer for each part of the model, 1F1B between stages. What is
faster in torch is taken: fused attention, fused Adam, sends that nobody waits for.

    rank = (copy * tp + slice) * pp + stage, as in a mesh (dp, tp, pp)
"""

import json
import os
import sys
import time
from collections import Counter

import numpy as np

try:
    import torch
    import torch.distributed as dist
    import torch.nn.functional as F
    from torch.autograd import Function
except ImportError:
    if __name__ == "__main__":
        raise
    Function = object  # for those who only read this file

__all__ = ["Comms", "PeerStage", "main", "order_of_1f1b", "train"]


def order_of_1f1b(stage, stages, microbatches):
    """[("F" or "B", micro-batch)] of one stage."""
    ahead = min(stages - 1 - stage, microbatches)
    order = [("F", i) for i in range(ahead)]
    for i in range(microbatches):
        if ahead + i < microbatches:
            order.append(("F", ahead + i))
        order.append(("B", i))
    return order


def part(count, ranks, rank):
    """The slice of ``count`` that a rank has: as even as can be, the first ones one more."""
    small, more = divmod(count, ranks)
    start = rank * small + min(rank, more)
    return slice(start, start + small + (rank < more))


# -- between ranks ---------------------------------------------------------------------------------


class Comms:
    """The three groups of a rank; counts the bytes of the tensors that its calls carry."""

    def __init__(self, shape, rank):
        self.shape = shape
        ranks = np.arange(np.prod(shape)).reshape(shape)
        self.at = tuple(int(i[0]) for i in np.where(ranks == rank))
        self.groups = []
        for axis in range(3):  # every rank makes every group, in one order
            lines = np.moveaxis(ranks, axis, -1).reshape(-1, shape[axis]).tolist()
            made = [(line, dist.new_group(line) if len(line) > 1 else None) for line in lines]
            self.groups += [group for line, group in made if rank in line]
            if axis == 2:
                self.line = next(line for line, _ in made if rank in line)
        self.payload = Counter()
        """Kind and number of ranks -> bytes."""
        self.sending = []

    def add_up(self, x, axis, op="SUM", later=False):
        """all_reduce in place among the ranks along ``axis``; returns what to wait for, or x."""
        n = self.shape[axis]
        if n == 1:
            return None if later else x
        self.payload[f"all_reduce of {n}"] += x.nbytes
        work = dist.all_reduce(x, getattr(dist.ReduceOp, op), self.groups[axis], async_op=later)
        return work if later else x

    def send(self, x, stage):
        x = x.detach().contiguous()
        self.payload["send"] += x.nbytes
        self.sending.append((dist.isend(x, self.line[stage]), x))

    def receive(self, like, stage):
        dist.recv(like, self.line[stage])
        return like

    def settle(self):
        for work, _ in self.sending:
            work.wait()
        self.sending.clear()


class Enter(Function):
    """f: nothing forward, all_reduce backward."""

    @staticmethod
    def forward(ctx, x, comms):
        ctx.comms = comms
        return x

    @staticmethod
    def backward(ctx, dx):
        return ctx.comms.add_up(dx.contiguous(), 1), None


class Leave(Function):
    """g: all_reduce forward, nothing backward."""

    @staticmethod
    def forward(ctx, y, comms):
        return comms.add_up(y.clone(), 1)

    @staticmethod
    def backward(ctx, dy):
        return dy, None


class Loss(Function):
    """The sum of the tokens' cross-entropies, of logits that are cut by classes."""

    @staticmethod
    def forward(ctx, logits, targets, first, comms):
        most = comms.add_up(logits.amax(-1), 1, "MAX")
        shifted = logits - most[:, None]
        at = targets - first
        here = (at >= 0) & (at < logits.shape[1])
        at = at.clamp(0, logits.shape[1] - 1)
        picked = shifted.gather(1, at[:, None])[:, 0] * here
        p = shifted.exp_()
        sums = comms.add_up(torch.stack([p.sum(-1), picked]), 1)
        p /= sums[0][:, None]
        p[torch.arange(len(at)), at] -= here.to(p.dtype)
        ctx.save_for_backward(p)
        return (sums[0].log() - sums[1]).sum()

    @staticmethod
    def backward(ctx, dloss):
        return ctx.saved_tensors[0] * dloss, None, None, None


# -- the model -------------------------------------------------------------------------------------


class PeerStage:
    """A rank's stage: weights by part and name, of this slice; forward of one micro-batch."""

    def __init__(self, job, comms, arrays):
        self.job, self.comms = job, comms
        self.slices, self.slice = comms.shape[1], comms.at[1]
        self.stages, self.stage = comms.shape[2], comms.at[2]
        self.dtype = getattr(torch, job["dtype"])
        self.heads = part(job["heads"], self.slices, self.slice)
        self.classes = part(job["vocabulary"], self.slices, self.slice)
        mine = part(job["layers"], self.stages, self.stage)
        self.layers = [f"layer {i}" for i in range(mine.start, mine.stop)]
        first = ["embedding", "positions"] if self.stage == 0 else []
        last = ["head"] if self.stage == self.stages - 1 else []
        self.parts = {}
        """Part -> name -> a parameter, whose gradient is a piece of the part's flat one."""
        self.flat = {}
        for unit in (*first, *self.layers, *last):
            names = [name for name in arrays.files if name.startswith(f"{unit}.")]
            made = {}
            for name in names:
                short = name.removeprefix(f"{unit}.")
                w = torch.from_numpy(np.ascontiguousarray(self._cut(unit, short, arrays[name])))
                made[short] = w.to(self.dtype).requires_grad_()
            flat, at = torch.zeros(sum(w.numel() for w in made.values()), dtype=self.dtype), 0
            for w in made.values():
                w.grad, at = flat[at : at + w.numel()].view_as(w), at + w.numel()
            self.flat[unit] = flat
            self.parts[unit] = made

    def _cut(self, unit, name, array):
        """This slice's part of a weight; matrices as [out, in], as torch has them."""
        h, width = self.job["hidden"], self.job["hidden"] // self.job["heads"]
        columns = slice(self.heads.start * width, self.heads.stop * width)
        inner = part(4 * h, self.slices, self.slice)
        kind = name.split(".")[-1]
        if kind in ("wqkv", "bqkv"):
            thirds = np.split(array, 3, axis=-1)
            return np.concatenate([third[..., columns] for third in thirds], axis=-1).T
        if kind == "wo":
            return array[columns].T
        if kind in ("w_1", "b_1"):
            return array[..., inner].T
        if kind == "w_2":
            return array[inner].T
        if kind == "w_head":
            return array[:, self.classes].T
        if unit == "embedding":
            return array[self.classes]
        return array

    def forward(self, x, targets):
        """Tokens [rows, s] or activations [rows, s, h] in; activations, or the loss, out."""
        if self.stage == 0:
            at = x - self.classes.start
            here = (at >= 0) & (at < self.classes.stop - self.classes.start)
            rows = F.embedding(at * here, self.parts["embedding"]["table"]) * here[..., None]
            x = Leave.apply(rows, self.comms) + self.parts["positions"]["table"]
        for layer in self.layers:
            x = self._block(x, self.parts[layer])
        if self.stage < self.stages - 1:
            return x
        w = self.parts["head"]
        x = Enter.apply(self._norm(x, w, "norm"), self.comms)
        logits = F.linear(x, w["w_head"]).flatten(0, 1)
        loss = Loss.apply(logits, targets.flatten(), self.classes.start, self.comms)
        return loss / self.job["count"]

    def _norm(self, x, w, name):
        return F.layer_norm(x, x.shape[-1:], w[f"{name}.w"], w[f"{name}.b"])

    def _block(self, x, w):
        rows, s, _ = x.shape
        a = Enter.apply(self._norm(x, w, "norm_1"), self.comms)
        joined = F.linear(a, w["attention.wqkv"], w["attention.bqkv"]).view(
            rows, s, 3, self.heads.stop - self.heads.start, -1
        )
        q, k, v = joined.permute(2, 0, 3, 1, 4)
        c = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        c = F.linear(c.transpose(1, 2).flatten(2), w["attention.wo"])
        x = x + Leave.apply(c, self.comms) + w["attention.bo"]
        m = Enter.apply(self._norm(x, w, "norm_2"), self.comms)
        g = F.gelu(F.linear(m, w["mlp.w_1"], w["mlp.b_1"]), approximate="tanh")
        return x + Leave.apply(F.linear(g, w["mlp.w_2"]), self.comms) + w["mlp.b_2"]


# -- a step ----------------------------------------------------------------------------------------


def step(model, comms, optimizer, ids, targets):
    """This rank's part of the loss; the weights are those after a step."""
    job, stage, last = model.job, model.stage, model.stages - 1
    microbatches, kept, loss = job["microbatches"], {}, 0.0
    rows = [part(len(ids), microbatches, i) for i in range(microbatches)]

    def block(i):
        shape = (rows[i].stop - rows[i].start, job["sequence"], job["hidden"])
        return torch.empty(shape, dtype=model.dtype)

    for kind, i in order_of_1f1b(stage, model.stages, microbatches):
        if kind == "F":
            x = ids[rows[i]]
            if stage:
                x = comms.receive(block(i), stage - 1).requires_grad_()
            y = model.forward(x, targets[rows[i]])
            kept[i] = x, y
            if stage < last:
                comms.send(y, stage + 1)
            else:
                loss += y.item()
        else:
            x, y = kept.pop(i)
            y.backward(comms.receive(block(i), stage + 1) if stage < last else None)
            if stage:
                comms.send(x.grad, stage - 1)
    sums = [comms.add_up(flat, 0, later=True) for flat in model.flat.values()]
    for work in sums:
        if work is not None:
            work.wait()
    optimizer.step()
    for flat in model.flat.values():
        flat.zero_()
    comms.settle()
    return loss


def train(job, comms):
    """A dict: losses, when each step began and ended, seconds of the core, bytes."""
    with np.load(job["arrays"]) as arrays:
        model = PeerStage(job, comms, arrays)
        mine = part(job["batch"], comms.shape[0], comms.at[0])
        ids, targets = (torch.from_numpy(arrays[name][:, mine]) for name in ("ids", "targets"))
    weights = [w for named in model.parts.values() for w in named.values()]
    optimizer = torch.optim.Adam(weights, lr=job["rate"], fused=True)
    losses, times = [], []
    dist.barrier()
    for n in range(job["steps"]):
        if n == job["warm"]:
            comms.payload.clear()
        before = time.time(), time.process_time(), written()
        losses.append(step(model, comms, optimizer, ids[n], targets[n]))
        after = time.time(), time.process_time(), written()
        times.append(
            {
                "begin": before[0],
                "end": after[0],
                "cpu": after[1] - before[1],
                "written": after[2] - before[2],
            }
        )
    steps = job["steps"] - job["warm"]
    payload = {kind: nbytes / steps for kind, nbytes in comms.payload.items()}
    counted = comms.at[1] == 0 and comms.at[2] == comms.shape[2] - 1
    return {"losses": losses if counted else [], "times": times, "payload": payload}


def written():
    """Bytes that this process has handed to system calls, to its sockets for the most part."""
    with open("/proc/self/io") as io:
        return next(int(line.split()[1]) for line in io if line.startswith("wchar"))


def main(folder, rank, ranks):
    """Do the jobs that come, one line each, until there are no more."""
    torch.set_num_threads(1)
    store = f"file://{os.path.abspath(folder)}/store"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=ranks)
    meshes = {}
    print(json.dumps({"torch": torch.__version__}), flush=True)
    for line in sys.stdin:
        job = json.loads(line)
        shape = tuple(job["shape"])
        if shape not in meshes:
            meshes[shape] = Comms(shape, rank)
        print(json.dumps(train(job, meshes[shape])), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
