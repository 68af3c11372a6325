"""The graders find every mutant of a right function, but those that are right too."""

import inspect

import pytest
from backends import readers
from backends.mutation import mutants
from backends.readers import READERS

from d2lmulti import check

ALONE = ("plan", "sampler", "schedule", "warmup", "zero")  # know no backend

# These compute the same, for this reason. Some frameworks raise an error for them.
EQUIVALENT = {
    "a list has one shape and one backend": [
        "allreduce 1: data[0]) -> data[-1])",
        "allreduce 2: data[0].shape)) -> data[-1].shape))",
        "reduce_scatter 1: data[0]), len(data)) -> data[-1]), len(data))",
        "reduce_scatter 2: data[0].shape[0], n) -> data[0].shape[-1], n)",
        "reduce_scatter 2: data[0].shape[0], n) -> data[-1].shape[0], n)",
        "ring_attention 1: Qs[0]), []) -> Qs[-1]), [])",
        "ring_attention 2: Qs[0].shape -> Qs[-1].shape",
    ],
    "simulated devices have one memory": [
        "allreduce 4: data[0])), add=True) -> data[1])), add=True)",
        "allreduce 4: data[0])), add=True) -> data[-1])), add=True)",
        "reduce_scatter 9: data[r]))) -> data[0])))",
        "ring_attention 17: Qs[r]))) -> Qs[0])))",
    ],
    "the sum is also copied to where it is": [
        "allreduce 5: data[1:]: -> data[:]:",
    ],
    "an empty part may be sent": [
        "plan 6: edges[part + 1] > edges[part]: -> edges[part + 1] >= edges[part]:",
        "plan 6: > edges[part]: -> > edges[0]:",
    ],
    "the ring begins with another part": [
        "plan 5: (r - step - 1) % ranks -> (r - step + 1) % ranks",
        "plan 5: (r - step - 1) % ranks -> (r - step) % ranks",
        "plan 5: (r - step - 1) % ranks -> (r - step - 2) % ranks",
    ],
    "one edge more is not used": ["plan 1: (ranks + 1)] -> (ranks + 2)]"],
    "both lists have one entry per device": [
        "train_batch 7: strict=True)] -> strict=False)]",
        "train_batch 9: strict=True): -> strict=False):",
    ],
    "device 0 computes everything, and the others nothing": [
        "tensor_pair 3: // k -> * k",
        "tensor_pair 3: // k -> W1.shape[1]",
    ],
    "the maximum of two has no order": [
        "tensor_pair 7: np.maximum(X @ W1[:, own], 0) -> np.maximum(0, X @ W1[:, own])",
        "experts 13: np.maximum(x[t] @ W1[e], 0) -> np.maximum(0, x[t] @ W1[e])",
        "ring_attention 12: np.maximum(top, -> np.maximum(scores.max(",
    ],
    "a stage is a whole number": ["zero 4: stage >= 1: -> stage >= 0.5:"],
    "both lines meet at the end of the warm-up": [
        "warmup 1: step >= warmup_steps: -> step > warmup_steps:"
    ],
}
LISTED = [words for some in EQUIVALENT.values() for words in some]


def is_listed(mutant):
    """Tell whether a mutant's words, `name line: old -> new`, are in the list."""
    place, _, lines = mutant.partition(": ")
    old, _, new = lines.partition(" -> ")
    for words in LISTED:
        same, _, parts = words.partition(": ")
        before, _, after = parts.partition(" -> ")
        if place == same and before in old and after in new:
            return True
    return False


def keywords_of(name, backend):
    """Return what a grader is asked for besides the function."""
    if name == "schedule":
        return {"max_stored": lambda p, m, d: min(p - d, m)}
    if name == "plan":
        return {"algorithm": "ring"}
    return {} if name in ALONE else {"backend": backend}


@pytest.mark.dealt
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", READERS)
def test_only_equivalent_mutants_pass(B, name):
    if name in ALONE and B.name != "numpy":
        pytest.skip("it knows no backend")
    keywords = keywords_of(name, B.name)
    grader = getattr(check, name)
    assert grader(READERS[name], **keywords)
    found = mutants(READERS[name])
    assert len(found) >= 3
    right = [words for words, f in found.items() if grader(f, **keywords)]
    if B.name == "mxnet":  # its backward pass overwrites gradients, cleared or not
        right = [words for words in right if "B.clear_grad_(p) -> pass" not in words]
    assert [words for words in right if not is_listed(words)] == []


def test_every_grader_has_a_reader() -> None:
    assert set(READERS) | {"Report"} == set(check.__all__)


DROP = """(
        *(z[: len(X) // len(devices) * len(devices)] for z in (X, y)), devices
    )"""

OVERLAP = """
        first = min(first, len(X) - each - (more > 0))
        last = first + each + (more > 0)"""
CHUNKS = """
    size = -(-len(X) // len(devices))
    Xs = [B.array(B.numpy(X)[a : a + size]) for a in range(0, len(X), size)]
    return Xs, [B.array(B.numpy(y)[a : a + size]) for a in range(0, len(X), size)]
    Xs, ys, first"""
SUM = """total = np.zeros(last - first)
        for x in data:
            total = total + B.numpy(x)[first:last]"""
MEANS = """* sum(
            B.numpy(B.grad(q)) / len(x) for q, x in zip(same, Xs)
        ) / len(same)"""
PARTS = (
    "[np.maximum(X @ a, 0) @ b for a, b in zip(np.split(W1, k, 1), np.split(W2, k))]"
)
BYTES = "states + grads + weights"
ROWS = """[sum(
        np.maximum(a @ b, 0)
        for a, b in zip(np.array_split(X, k, 1), np.array_split(W1, k))
    ) @ W2] * k"""
BLOCKS = """total = np.ones((t, 1))
            mixed = mixed + weights / weights.sum(axis=1, keepdims=True)"""
SWAP = "    states, weights = weights, states\n"

# In a right function, `old` becomes `new`, and the grader names the kind of mistake.
SLIPS = [
    ("experts", "p[t, e] * (", "(", "gate is missing"),
    ("experts", "out[t] += p", "out[t] = p", "not added to its input"),
    ("experts", "< capacity", "< 99", "No token is dropped"),
    (
        "experts",
        "[0] * router.shape[1], x.copy()",
        "U, x.copy()",
        "all devices together",
    ),
    ("experts", "range(len(x))", "range(len(x))[::-1]", "last tokens"),
    ("experts", "np.maximum(x[t] @ W1[e], 0)", "x[t] @ W1[e]", "ReLU is missing"),
    ("resume", 'B.array(saved["v"])', "start * 0", "velocity is not saved"),
    ("resume", 'B.array(saved["w"])', "start", "weights are not saved"),
    ("resume", 'int(saved["done"])', "0", "again at step 0"),
    ("resume", "done=step + 1", "done=step + 2", "skipped"),
    ("resume", "done=step + 1", "done=step", "repeated"),
    ("resume", 'path + ".new", "wb"', 'path, "wb"', "in place"),
    ("resume", "if os.path.exists(path)", "if False", "no file is read"),
    ("resume", "w=B.numpy(w)", "w=B.numpy(w + v * 0.1)", "before the step"),
    ("resume", "v * 0.9 + ", "", "no momentum"),
    ("resume", "range(done, steps)", "range(done, done + steps)", "counted from where"),
    ("split_batch", "each + (i < more)", "each + (more > 0)", "rounded up"),
    ("reduce_scatter", "(r < more)", "(r == n - 1) * more", "whole remainder"),
    ("reduce_scatter", "each + (r < more)", "each", "remainder is lost"),
    ("reduce_scatter", "return parts", "return parts[::-1]", "reverse order"),
    ("plan", "(r + 1) % ranks", "(r - 1) % ranks", "sends another part"),
    ("plan", "2 * ranks - 2", "2 * ranks - 3", "A transfer is missing"),
    ("train_batch", "(X, y, devices)\n    for", DROP + "\n    for", "are dropped"),
    ("tensor_pair", "B.array(total", "B.array(np.maximum(total, 0)", "second ReLU"),
    ("ring_attention", "total * fade +", "total +", "sum of weights is not scaled"),
    ("ring_attention", "mixed * fade +", "mixed +", "output is not scaled"),
    ("ring_attention", "mixed / total", "mixed", "not divided by the sum"),
    ("ring_attention", "/ d**0.5", "/ d", "by d, not sqrt(d)"),
    ("ring_attention", "at[:, None]", "t", "no later tokens of its own"),
    ("experts", "< capacity", "<= capacity", "one too large"),
    ("experts", "< capacity", "< capacity - 1", "one too small"),
    ("experts", "p[t, e] * (", "scores[t, e] * (", "a score"),
    ("experts", "+= p[t, e] * (", "= p[t, e] * (x[t] + ", "multiplies the input"),
    ("schedule", "f - b < p - d", "f - b <= p - d", "a forward pass too many"),
    ("schedule", "f < m and f - b < p - d", "f < m", "GPipe"),
    ("schedule", "f - b < p - d", "f - b < d + 1", "A deadlock"),
    ("schedule", '("F", d, f)', '("F", d + 1, f)', "is missing"),
    ("zero", "stage >= 3", "stage > 3", "Stage 3 does not shard"),
    ("zero", "12 * parameters", "16 * parameters", "16 bytes"),
    ("zero", "grads = 2", "grads = 4", "Gradients are counted"),
    ("sampler", "rng(epoch)", "rng(epoch % 5)", "seeded alike"),
    ("sampler", "return padded", "return 1 + padded", "counted from 0"),
    ("sampler", "permutation(n)", "integers(0, n, n)", "with replacement"),
    ("warmup", "* step / warmup_steps", "* 0", "jumps"),
    ("warmup", "lr + (devices - 1) * lr * step", "lr * devices * step", "starts at 0"),
    ("split_batch", "each + (i < more)", "each", "the remainder is lost"),
    ("split_batch", "(i < more)", "(i == len(devices) - 1) * more", "whole remainder"),
    ("split_batch", "each + (i < more)", "each + (i < more)" + OVERLAP, "count twice"),
    ("split_batch", "    Xs, ys, first", CHUNKS, "chunk may return fewer"),
    ("split_batch", "return Xs", "ys.reverse()\n    return Xs", "Labels left"),
    ("get_params", "B.attach_grad(copy)", "pass", "No gradient is attached"),
    ("get_params", "B.copy_to(B.detach(p), device)", "p", "Replicas share memory"),
    (
        "reduce_scatter",
        SUM,
        "total = B.numpy(data[r])[first:last]",
        "nothing was summed",
    ),
    ("reduce_scatter", SUM, "total = sum(map(B.numpy, data))", "all-reduce"),
    ("reduce_scatter", "B.array(total", "B.array(total / n", "mean"),
    ("reduce_scatter", "return parts", "return [*parts[1:], parts[0]]", "neighbor"),
    ("train_batch", "/ len(X)", "", "not divided by the number of examples"),
    ("train_batch", "/ len(X)", "/ len(X) * len(devices)", "of one device"),
    ("train_batch", "/ len(X)", "/ len(X) / len(devices)", "once more"),
    ("train_batch", "/ len(X) * total", MEANS, "mean of means"),
    ("train_batch", "(p) - lr", "(p) + lr", "wrong sign"),
    ("train_batch", "* total", "* 0", "No replica"),
    ("train_batch", "* total", "* B.numpy(B.grad(p))", "not summed"),
    ("train_batch", "in same:", "in same[:1]:", "Only replica 0"),
    ("train_batch", "B.clear_grad_(p)", "pass", "clear them first"),
    (
        "tensor_pair",
        "np.maximum(X @ W1[:, own], 0)",
        "X @ W1[:, own]",
        "ReLU is missing",
    ),
    ("tensor_pair", "B.array(total", "B.array(total / k", "mean"),
    ("tensor_pair", "return [", f"return {PARTS}\n    [", "partial sums"),
    (
        "tensor_pair",
        "return [",
        f"return [total, *{PARTS}[1:]]\n    [",
        "Only device 0",
    ),
    ("tensor_pair", "return [", f"return {ROWS}\n    [", "relu(a + b)"),
    ("ring_attention", "range(r, -1, -1)", "[r]", "own keys only"),
    ("ring_attention", "mixed = mixed * fade + weights", BLOCKS, "running maximum"),
    ("ring_attention", "/ d**0.5", "", "not divided by sqrt(d)"),
    ("zero", "12 * parameters", "8 * parameters", "float32 weights"),
    (
        "zero",
        "    if stage >= 1",
        "    stage = 0\n    if stage >= 1",
        "Nothing is sharded",
    ),
    ("zero", "    if stage >= 1", "    stage = 3\n    if stage >= 1", "at every stage"),
    ("zero", "    if stage >= 1", "    stage -= 1\n    if stage >= 1", "one before"),
    ("zero", "    if stage >= 1", SWAP + "    if stage >= 1", "another order"),
    ("zero", BYTES, f"{BYTES} + grads + weights", "Weights and gradients are counted"),
    ("zero", BYTES, f"devices * ({BYTES})", "all devices together"),
    ("sampler", "rng(epoch)", "rng(0)", "set_epoch"),
    ("sampler", "rng(epoch)", "rng(100 * epoch + rank)", "different orders"),
    ("sampler", "rng(epoch)", "rng()", "not seeded"),
    ("sampler", "(n + ranks - 1) // ranks", "n // ranks", "dropped"),
    ("sampler", "np.resize(order, each * ranks)", "order", "waits"),
    ("sampler", "[rank * each : (rank + 1) * each]", "", "all data"),
    ("warmup", "lr * step /", "lr * (step + 1) /", "one step early"),
    ("warmup", "step >= warmup_steps", "False", "goes on"),
    ("warmup", "step >= warmup_steps", "True", "no warm-up"),
    ("warmup", "    if", "    devices = devices**0.5\n    if", "sqrt"),
    ("warmup", "    if", "    devices = 1\n    if", "not scaled"),
]


@pytest.mark.parametrize("name, old, new, mistake", SLIPS, ids=range(len(SLIPS)))
def test_a_slip_is_named(name, old, new, mistake):
    source = inspect.getsource(READERS[name])
    assert source.count(old) == 1
    source = source.replace(old, new)
    if new.startswith("U,"):  # one counter for all devices
        source = source.replace(
            "for X in Xs", "U = [0] * router.shape[1]\n    for X in Xs"
        )
    if new.startswith("path,"):
        source = source.replace('        os.replace(path + ".new", path)\n', "")
    names = dict(vars(readers))
    exec(source, names)
    report = getattr(check, name)(names[name], **keywords_of(name, "numpy"))
    assert not report and mistake in report.mistake, report
    assert not report.mistake.startswith("Perhaps")
