"""D2L's section on several GPUs runs cell by cell with our functions in its cells.

The cells in `cells/` make the same calls in the same order as the section's three tabs;
our functions take the places of theirs, one at a time and all together.
"""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from backends.compare import assert_near

import d2lmulti
from d2lmulti.comm.cooperative import Sum, together
from d2lmulti.models.networks import Model, lenet

FUNCTIONS = ("get_params", "allreduce", "split_batch", "train_batch")
FRAMEWORKS = ("torch", "mxnet", "paddle")


def cells_of(framework: str) -> list[tuple[str, str]]:
    """Title and code of every cell, after enough empty lines for line numbers."""
    path = Path(__file__).parent / "cells" / f"{framework}_cells.py"
    found, text = [], path.read_text("utf-8")
    marks = list(re.finditer(r"^# %% (.*)$", text, re.MULTILINE))
    for mark, after in zip(marks, [*marks[1:], None], strict=True):
        end = after.start() if after else len(text)
        above = text.count("\n", 0, mark.start())
        found.append((mark[1], "\n" * above + text[mark.start() : end]))
    return found


def given(B: Any, theirs: Any) -> SimpleNamespace:
    """D2L's module with our devices in it, and with small data."""
    digits = d2lmulti.load("digits", "float64").first(160)

    def load_data_fashion_mnist(batch_size: int) -> tuple[list, list]:
        X, y = digits.train_X[:160], digits.train_y[:160]
        batches = [
            (B.array(X[i : i + batch_size]), B.array(y[i : i + batch_size]))
            for i in range(0, 160, batch_size)
        ]
        return batches, batches

    def sgd(params: list, lr: float, batch_size: int) -> list:
        """D2L's for Paddle: new tensors."""
        stepped = [(p - lr * p.grad / batch_size).detach() for p in params]
        for p in stepped:
            p.stop_gradient = False
        return stepped

    def evaluate_accuracy_gpu(net: Any, data: list, device: Any) -> float:
        hits = [
            np.argmax(B.numpy(net(B.copy_to(X, device))), 1) == B.numpy(y)
            for X, y in data
        ]
        return float(np.concatenate(hits).mean())

    own = {"sgd": sgd, "evaluate_accuracy_gpu": evaluate_accuracy_gpu}
    found = {**own, **(vars(theirs) if theirs else {})}
    found["try_gpu"] = lambda i=0: d2lmulti.try_gpu(i, B.name)
    found["load_data_fashion_mnist"] = load_data_fashion_mnist
    return SimpleNamespace(**found)


def run(framework: str, B: Any, theirs: Any, ours: tuple[str, ...]) -> dict[str, Any]:
    """Run all cells; names in `ours` are ours as soon as a cell has defined them."""
    seed_everything(framework)
    names: dict[str, Any] = {"d2l": given(B, theirs)}
    cells = cells_of(framework)
    assert len(cells) == 12
    for done, (title, code) in enumerate(cells):
        try:
            exec(compile(code, f"{framework}_cells.py", "exec"), names)
        except Exception as error:
            pytest.fail(f"cell {title!r}, after {done} that ran: {error!r}")
        for name in ours:
            if name in names:
                names[name] = getattr(d2lmulti, name)
    return names


def seed_everything(framework: str) -> None:
    if framework == "torch":
        import torch

        torch.manual_seed(0)
    elif framework == "mxnet":
        import mxnet

        mxnet.random.seed(0)
    else:
        import paddle

        paddle.seed(0)


@pytest.fixture(
    params=[
        pytest.param(
            name, marks=[getattr(pytest.mark, name), pytest.mark.xdist_group(name)]
        )
        for name in FRAMEWORKS
    ],
    scope="module",
)
def section(request, load):
    """Backend, D2L's module (it has none for Paddle) and what one device learns."""
    B = load(request.param)
    theirs = None
    if request.param != "paddle":
        theirs = request.getfixturevalue(f"d2l_{request.param}")
    names = run(request.param, B, theirs, ("get_params",))
    return request.param, B, theirs, names["one"]


@pytest.mark.parametrize("ours", [*((name,) for name in FUNCTIONS), FUNCTIONS])
def test_every_cell_runs_and_trains_as_one_device(section, ours):
    framework, B, theirs, (accuracy, (alone,)) = section
    with_copies = {"get_params", *ours}  # D2L's own shares its tensors on one device
    names = run(framework, B, theirs, tuple(with_copies))
    assert accuracy > 0.3  # chance is 0.1
    for found_accuracy, device_params in (names["one"], names["two"]):
        assert found_accuracy == accuracy
        for params in device_params:
            for p, q in zip(params, alone, strict=True):
                got, want = B.numpy(p), B.numpy(q)
                assert np.abs(got - want).max() <= 1e-9 * np.abs(want).max()


def test_their_steps_and_ours_take_turns_on_the_same_parameters(section):
    """Their step finds gradients of zero; ours leaves the sum, and clears it itself."""
    framework, B, theirs, _ = section
    names = run(framework, B, theirs, ("get_params", "allreduce", "split_batch"))
    (X, y), *_ = names["d2l"].load_data_fashion_mnist(64)[0]
    devices = [names["d2l"].try_gpu(i) for i in range(2)]
    ends = []
    for steps in ("theirs " * 4, "theirs ours ours theirs", "ours " * 4):
        device_params = [d2lmulti.get_params(names["params"], d) for d in devices]
        for step in steps.split():
            for p in (p for params in device_params for p in params):
                if p.grad is None:  # Paddle's sgd makes new tensors
                    B.attach_grad(p, add=False)
                elif framework != "mxnet":  # where they overwrite it
                    B.clear_grad_(p)
            step_of = {"ours": d2lmulti.train_batch, "theirs": names["train_batch"]}
            step_of[step](X, y, device_params, devices, 0.2)
        ends.append([[B.numpy(p) for p in params] for params in device_params])
    for end in ends[1:]:
        for params, others in zip(end, ends[0], strict=True):
            assert_near(params, others, 1e-9)


def test_a_model_that_talks_adds_up_all_its_backward_passes(framework):
    """Weights that two segments use: MXNet's own gradients would keep one part only."""
    B = framework

    def forward(B, params, X):
        h = X @ params[0]
        (total,) = yield Sum(h)
        return total @ params[0]

    rng = np.random.default_rng(0)
    start, X = B.array(rng.normal(size=(4, 4))), rng.normal(size=(6, 4))
    plain = lenet  # never called
    model = Model("tied", lambda rng: [], plain, plain, together=together(forward))
    y, found = B.array(rng.integers(0, 4, 6)), []
    for attach in (lambda p: None, B.attach_grad):
        params = d2lmulti.get_params([start], "cpu")
        attach(params[0])
        d2lmulti.train_batch(B.array(X), y, [params], ["cpu"], 0.1, model=model)
        found.append(B.numpy(B.grad(params[0])))
    h = X @ B.numpy(start)
    p = np.exp(h @ B.numpy(start))
    d = p / p.sum(1, keepdims=True) - np.eye(4)[B.numpy(y)]
    want = h.T @ d + X.T @ (d @ B.numpy(start).T)
    for got in found:
        np.testing.assert_allclose(got, want, rtol=1e-12)
