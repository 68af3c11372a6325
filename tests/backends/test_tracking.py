"""Simulated devices kept apart: a forgotten copy raises, and copies are counted."""

import gc

import numpy as np
import pytest
from backends.compare import arrays, assert_near, on_real_gpu

import d2lmulti
from d2lmulti.backends import get_backend, tracked_frameworks
from d2lmulti.comm.devices import track_devices
from d2lmulti.observe.ledger import Ledger
from d2lmulti.plans.allreduce import ALLREDUCE

KEEPS_APART = ("torch", "mxnet", "numpy")


@pytest.fixture
def tracked(B):
    """A backend whose tensors know their simulated device."""
    if B.name not in KEEPS_APART:
        pytest.skip(f"{B.name} cannot tell simulated devices apart")
    if B.gpu_count() > 1:
        pytest.skip("GPUs are kept apart by the framework")
    with track_devices(B.name):
        yield B


def on(B, *places):
    return [B.array([1.0 + i, 2.0 + i], place) for i, place in enumerate(places)]


MIXED = {
    "a sum": lambda B, x, y: x + y,
    "a product": lambda B, x, y: x * y,
    "a scalar product": lambda B, x, y: x @ y,
    "concat": lambda B, x, y: B.concat([x, y]),
    "a dense layer": lambda B, x, y: x.reshape((2, 1)) @ y.reshape((1, 2)),
    "the loss": lambda B, x, y: B.cross_entropy(
        x.reshape((1, 2)), B.array([1], B.device_of(y))
    ),
}


@pytest.mark.parametrize("operation", MIXED)
def test_an_operation_on_two_devices_raises(tracked, operation):
    for there in ("sim:1", "cpu"):
        x, y = on(tracked, "sim:0", there)
        with pytest.raises(RuntimeError, match=rf"same device.* {there}|{there} and"):
            MIXED[operation](tracked, x, y)
        MIXED[operation](tracked, x, tracked.copy_to(y, "sim:0"))


def test_tracking_ends_with_the_outer_block(B):
    with track_devices(B.name):
        with track_devices(B.name):
            pass
        if B.name in KEEPS_APART and B.gpu_count() < 2:
            x, y = on(B, "sim:0", "sim:1")
            with pytest.raises(RuntimeError):
                x + y
    x, y = on(B, "sim:0", "sim:1")
    if B.gpu_count() < 2:
        assert B.numpy(x + y).tolist() == [3.0, 5.0]


def test_tracking_lasts_though_nobody_holds_it(B):
    if B.name not in KEEPS_APART or B.gpu_count() > 1:
        pytest.skip("nothing is tracked")
    track_devices(B.name)
    gc.collect()
    try:
        x, y = on(B, "sim:0", "sim:1")
        with pytest.raises(RuntimeError):
            x + y
    finally:
        tracked_frameworks[B.name].close()
    assert B.numpy(x).tolist() == [1.0, 2.0]


def test_results_and_gradients_are_on_the_device_of_their_inputs(tracked):
    B = tracked
    (x,) = on(B, "sim:2")
    B.attach_grad(x)
    with B.record():
        y = B.relu(x[1:] * 2).sum()
    B.backward([y])
    made = [x, y, B.grad(x), B.read(x, 0, 1), B.detach(x), B.cast(x, "float32")]
    made += [B.sqrt(x), B.zeros((2,), "float32", "sim:2"), B.copy_to(x, "sim:2")]
    assert {B.device_of(z) for z in made} == {"sim:2"}
    assert B.numpy(B.grad(x)).tolist() == [0.0, 2.0]
    assert B.device_of(B.copy_to(x, "cpu")) == "cpu"


def test_a_copy_by_the_caller_is_counted_once(tracked):
    B = tracked
    x, y, host = on(B, "sim:0", "sim:1", "cpu")
    with d2lmulti.ledger() as moved:
        z = B.copy_to(x, "sim:1")
        B.write_(y, 0, 1, B.read(x, 1, 2), add=True)
        B.copy_to(z, "sim:1")
        B.copy_to(host, "sim:1")
        B.numpy(z)
    assert moved.links == {(0, 1): 16 + 8}
    assert moved.messages == 2 and moved.loaded == 16
    assert B.numpy(y).tolist() == [4.0, 3.0]


def test_the_library_counts_what_it_counted_before(tracked):
    for algorithm, plan in ALLREDUCE.items():
        data = on(tracked, *(f"sim:{i}" for i in range(4)))
        with d2lmulti.ledger() as moved:
            d2lmulti.allreduce(data, algorithm)
        assert moved.links == Ledger().count_plan(plan(4, 2), itemsize=8).links
        assert all(tracked.numpy(x).tolist() == [10.0, 14.0] for x in data)


@pytest.mark.parametrize("strategy", ["data", "tensor", "pipeline"])
def test_training_is_the_same_to_the_last_bit(B, strategy):
    def weights():
        run = d2lmulti.train(
            2, 16, 0.1, epochs=1, model="mlp", strategy=strategy, backend=B.name,
            dataset=d2lmulti.load("digits").first(64),
        )  # fmt: skip
        return run.losses, arrays(B, run.device_params)

    losses, plain = weights()
    with track_devices(B.name):
        tracked_losses, found = weights()
    # Tracked devices lie on the CPU: with one GPU, the other run was on that.
    tolerance = 1e-5 if on_real_gpu(B) else 0
    assert tracked_losses == pytest.approx(losses, rel=tolerance, abs=0)
    for params, others in zip(found, plain, strict=True):
        assert_near(params, others, tolerance)


# -- a program of its own, which moves its tensors itself ----------------------------

MOVES = {
    "torch": (lambda x, device: x.to(device), lambda x, into: into.copy_(x)),
    "mxnet": (lambda x, device: x.as_in_ctx(device), lambda x, into: x.copyto(into)),
}


def step(B, X, y, replicas, devices, forget=None):
    """Take one step of a linear model, as a reader would write it; forget one copy."""
    move, copy = MOVES[B.name]

    def to(x, device, what):
        return x if forget == what else move(x, device)

    for rows, w, device in zip((slice(3), slice(3, 6)), replicas, devices, strict=True):
        with B.record():
            error = to(X[rows], device, "X") @ w - to(y[rows], device, "y")
            loss = (error**2).sum()
        loss.backward()
    grads = [w.grad for w in replicas]
    with B.pause():
        grads[0][:] += to(grads[1], devices[0], "gradient")
        copy(*grads)
        for i, w in enumerate(replicas):
            w[:] = w - 0.1 * (grads[0] if forget == "sum" else grads[i]) / len(X)


@pytest.fixture(params=MOVES)
def program(request):
    """A backend, and what the step takes."""
    B = pytest.importorskip(request.param) and get_backend(request.param)
    if B.gpu_count() > 1:
        pytest.skip("GPUs are kept apart by the framework")
    with track_devices(B.name):
        devices = [B.native(f"sim:{i}") for i in range(2)]
        replicas = [B.array(np.ones(3), d) for d in devices]
        for w in replicas:
            B.attach_grad(w)
        X, y = B.array(np.ones((6, 3)), devices[0]), B.array(np.arange(6.0), devices[0])
        yield B, X, y, replicas, devices


def test_a_program_moves_what_the_formula_says(program):
    B, _, _, replicas, _ = program
    with d2lmulti.ledger() as moved:
        step(*program)
    shard = 3 * 3 * 8 + 3 * 8  # three examples of three numbers, and three targets
    assert moved.links == {(0, 1): shard + 3 * 8, (1, 0): 3 * 8}
    assert moved.messages == 4 and moved.loaded == 0
    assert B.numpy(replicas[0]).tolist() == B.numpy(replicas[1]).tolist()


@pytest.mark.parametrize("forget", ["X", "y", "gradient", "sum"])
def test_a_program_that_forgets_a_copy_fails(program, forget):
    with pytest.raises(RuntimeError, match="sim:0 and sim:1"):
        step(*program, forget=forget)


# -- PyTorch's own ways to move a tensor ---------------------------------------------


@pytest.fixture
def torch():
    torch = pytest.importorskip("torch")
    if torch.cuda.device_count() > 1:
        pytest.skip("GPUs are kept apart by PyTorch")
    with track_devices("torch"):
        yield torch


def test_to_the_same_device_returns_the_tensor_itself(torch):
    x = torch.ones(2, device="cpu:0")
    assert x.to("cpu:0") is x and x.to(x.device) is x and x.to(x) is x
    copy = x.to("cpu:0", copy=True)
    assert copy is not x and copy.device == x.device
    y = x.to("cpu:1")
    assert str(y.device) == "cpu:1" and y.data_ptr() != x.data_ptr()
    assert str(x.to("cpu:1", torch.float16)) == str(y.half())
    assert x.double().device == x.to(torch.float64).device == x.device
    assert x.cpu() is not x and x.cpu().device == torch.device("cpu")
    host = torch.ones(2)
    assert host.cpu() is host and host.to("cpu") is host


def test_numpy_wants_a_tensor_of_the_host(torch):
    x = torch.ones(2, device="cpu:1")
    for read in (lambda: x.numpy(), lambda: np.asarray(x)):
        with pytest.raises(TypeError, match="can't convert sim:1"):
            read()
    assert x.cpu().numpy().tolist() == x.tolist() == [1.0, 1.0]


def test_a_view_is_on_the_device_of_its_tensor(torch):
    x = torch.zeros(2, 3, device="cpu:1")
    for view in (x[0], x.T, x.view(-1), x.detach(), x.unbind()[1], x[:, None]):
        assert str(view.device) == "cpu:1"
    x[0] = torch.ones(3, device="cpu:0")  # PyTorch copies a value from anywhere
    x[1] += 2.0
    assert x.tolist() == [[1.0] * 3, [2.0] * 3]
    ids = torch.tensor([1, 0])  # and takes ids from the host
    assert str(x[ids].device) == "cpu:1"
    other = ids.to("cpu:0")
    for index in (lambda: x[other], lambda: x[other > 0], lambda: x.mul_(x[other])):
        with pytest.raises(RuntimeError, match="sim:0"):
            index()
    with pytest.raises(RuntimeError, match="sim:0"):
        x[other] = 1.0


def test_a_gradient_goes_back_over_the_copy(torch):
    x = torch.ones(4, device="cpu:0", requires_grad=True)
    with d2lmulti.ledger() as moved:
        (x.to("cpu:1") * 3).sum().backward()
    assert moved.links == {(0, 1): 16, (1, 0): 16}
    assert x.grad.device == x.device and x.grad.tolist() == [3.0] * 4
    y = torch.zeros(4, device="cpu:1")
    with d2lmulti.ledger() as moved:
        y.copy_(x)
        y[2:].copy_(x.detach()[:2])
        y.sum().backward()
    assert moved.links == {(0, 1): 16 + 8, (1, 0): 16}
    assert x.grad.tolist() == [4.0, 4.0, 3.0, 3.0]


def test_a_module_moves_with_its_optimizer(torch):
    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 1)).to("cpu:1")
    optimizer = torch.optim.Adam(net.parameters())
    x = torch.ones(2, 3)
    with pytest.raises(RuntimeError, match="cpu and sim:1"):
        net(x)
    for _ in range(2):
        optimizer.zero_grad()
        net(x.to("cpu:1")).sum().backward()
        optimizer.step()
    assert {str(p.grad.device) for p in net.parameters()} == {"cpu:1"}
