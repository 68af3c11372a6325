"""Mixed precision: 16 bits held, computed, and sent; master weights in float32."""

from __future__ import annotations

import numpy as np
import pytest
from backends.compare import on_real_gpu

import d2lmulti
from d2lmulti import SGD, AdamW, gather_shards, ledger, shard_params, train_shards
from d2lmulti.errors import InvalidInput
from d2lmulti.models.networks import make_mlp

MODEL = make_mlp("uneven", (13, 7, 3, 5))
SIZES = [13 * 7 + 7, 7 * 3 + 3, 3 * 5 + 5]  # neither 2 nor 3 devices divide all
HAVE = [
    pytest.param("torch", "bf16", marks=pytest.mark.torch),
    pytest.param("torch", "fp16", marks=pytest.mark.torch),
    ("numpy", "fp16"),
]
computes = pytest.mark.parametrize(("name", "precision"), HAVE)


def rounded(x, precision):
    """Round a float32 to 16 bits and back, by NumPy's own arithmetic."""
    if precision == "fp16":
        return x.astype("float16").astype("float32")
    bits = x.view("uint32")
    odd = bits >> 16 & 1  # ties go to the even one
    return (bits + 0x7FFF + odd & np.uint32(0xFFFF0000)).view("float32")


def test_a_cast_rounds_to_the_nearest_even_and_is_a_copy(B):
    x = np.float32([[1, 1 + 2**-11, 1 + 3 * 2**-11], [1e-8, 65519, 70000]])
    with np.errstate(over="ignore"):  # NumPy 2 warns of 70000
        wanted = x.astype("float16")
    low = B.cast(B.array(x), "float16")
    assert B.dtype_of(low) == "float16" and (B.numpy(low) == wanted).all()
    back = B.cast(low, "float32")
    assert (B.numpy(back) == wanted.astype("float32")).all()
    again = B.cast(back, "float32")
    B.write_(again, 0, 1, B.array(np.float32([7])))
    assert B.numpy(back)[0, 0] == 1
    with pytest.raises(InvalidInput, match="expected a dtype among"):
        B.cast(back, "float8")


def start(B, k, zero, precision, optimizer):
    rng = np.random.default_rng(0)
    params = [B.array(p.astype("float32")) for p in MODEL.initial(rng)]
    places = d2lmulti.devices(k, B.name)
    sharded = shard_params(params, places, MODEL, zero, precision=precision)
    return places, sharded, [optimizer.init(mine) for mine in sharded.parts()]


def step(B, places, sharded, optimizer, states, seed=0, **more):
    rng = np.random.default_rng(seed)
    X, y = rng.normal(size=(29, 13)).astype("float32"), rng.integers(0, 5, 29)
    with ledger() as moved:
        losses = train_shards(B.array(X), B.array(y), sharded, places, 0.25,
                              optimizer=optimizer, states=states, **more)  # fmt: skip
    return moved, [B.dtype_of(loss) for loss in losses]


@computes
@pytest.mark.parametrize("zero", [1, 2, 3])
def test_bytes_held_and_moved_are_the_formula(load, name, precision, zero):
    B, N, last = load(name), sum(SIZES), SIZES[-1]
    for k in (2, 3):
        places, sharded, states = start(B, k, zero, precision, AdamW())
        moved, dtypes = step(B, places, sharded, AdamW(), states)
        assert dtypes == ["float32"] * k
        for rank in range(k):
            own = sum(size // k + (rank < size % k) for size in SIZES)
            kinds = sharded.grads, sharded, sharded.master_weights, states
            held = [
                sum(int(np.prod(x.shape)) * (4 if B.dtype_of(x) == "float32" else 2)
                    for x in kind[rank]) for kind in kinds
            ]  # fmt: skip
            whole = [2 * (N if zero < stage else own) for stage in (2, 3)]
            assert held == [*whole, 4 * own, 8 * own + 8]  # and Adam's two counts
        passes = N + (N if zero < 3 else 2 * N - last)
        assert moved.bytes == 2 * (k - 1) * passes


@computes
@pytest.mark.parametrize("zero", [1, 2, 3])
def test_masters_are_those_of_numpy_bit_for_bit(load, name, precision, zero):
    B, optimizer = load(name), SGD(0.5)
    n = np.float32(29)
    # On a GPU, PyTorch multiplies by the reciprocal of a divisor that is on the host.
    mean = (lambda x: x * (1 / n)) if on_real_gpu(B) else (lambda x: x / n)
    places, sharded, states = start(B, 3, zero, precision, optimizer)
    masters = [[B.numpy(p) for p in mine] for mine in sharded.master_weights]
    speeds = [[0 * m for m in mine] for mine in masters]
    for seed in range(3):
        step(B, places, sharded, optimizer, states, seed, loss_scale=8.0)
        for rank, bounds in enumerate(sharded.bounds):
            for l, (first, last) in enumerate(bounds):
                grad = B.numpy(sharded.grads[rank][l]).astype("float32")
                held = B.numpy(sharded[rank][l]).astype("float32")
                if zero == 1:
                    grad = grad[first:last]
                if zero < 3:
                    held = held[first:last]
                speed = speeds[rank][l] * np.float32(0.5) + mean(grad / 8)
                speeds[rank][l] = speed
                masters[rank][l] = masters[rank][l] - speed * np.float32(0.25)
                assert (
                    B.numpy(sharded.master_weights[rank][l]) == masters[rank][l]
                ).all()
                assert (held == rounded(masters[rank][l], precision)).all()
    wholes = [B.numpy(p).ravel() for p in gather_shards(sharded)[0]]
    both = [np.concatenate([mine[l] for mine in masters]) for l in range(3)]
    assert (np.concatenate(wholes) == np.concatenate(both)).all()


@pytest.mark.torch
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_training_gets_as_far_in_half_the_bytes(load, precision):
    load("torch")
    digits = d2lmulti.load("digits").first(640)
    run = {"model": "mlp", "dataset": digits, "epochs": 3, "backend": "torch"}
    half, full = (
        d2lmulti.train(2, 64, strategy="sharded", zero=2, precision=p, **run)
        for p in (precision, None)
    )
    assert half.bytes_moved * 2 == full.bytes_moved
    assert half.losses[-1] == pytest.approx(full.losses[-1], rel=0.05)
    assert half.losses != full.losses
    assert half.accuracies[-1] > full.accuracies[-1] - 0.02 > 0.8
    assert all("float32" in str(p.dtype) for p in half.device_params[1])
