"""The core chapters build their idea on the page: their own cells train without ours.

Cells tagged `from-scratch` are what a page builds. Here they run alone, from the top,
in a process where every function of `d2lmulti.parallel` refuses to work: one process a
framework, in which each page has names of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import nbformat
import pytest
from book.notebooks import ROOT

from d2lmulti.backends import framework_names
from d2lmulti_book.notebook import split_cell

TAG = "from-scratch"

# What a reader would type next: training where the page's own cells print no loss, and
# a check that no cell of the page prints.
TRAINS = {
    "allreduce": """
def backward(loss, params, ready):  # one process: its own sum is the sum
    B.backward([loss])
    for i in reversed(range(len(params))):
        ready(i, B.grad(params[i]))

def in_one_process(loss, params):
    sums = lambda flat: lambda: None
    ready, finish, _ = in_buckets(buckets, params, sums)
    backward(loss, params, ready)
    finish()

def loss_of(weights):
    with B.pause():
        logits = model.forward(B, [B.array(w) for w in weights], B.array(X))
        return float(B.numpy(B.cross_entropy(logits, B.array(y)).sum()))

print("loss", loss_of(start))
for step in range(20):
    start = [w - 0.1 / 64 * g for w, g in zip(start, gradients(X, y, in_one_process))]
print("loss", loss_of(start))
""",
    "data_parallel": """
trained = train(2, 32, 0.1)[0]
X, y = B.array(some.train_X, two_devices[0]), B.array(some.train_y, two_devices[0])
for params in ([B.array(p, two_devices[0]) for p in start], trained):
    with B.pause():
        print("loss", float(B.numpy(summed_loss(lenet(X, params), y))))

first = d2lmulti.get_model("lenet_sync_bn").initial(np.random.default_rng(0))[:10]
def gradients(k, together):
    devices = [B.native(d) for d in d2lmulti.devices(k)]
    replicas = [get_params([B.array(p) for p in first], d) for d in devices]
    Xs, ys = split_batch(X[:7], y[:7], devices)
    with B.record():
        logits = lenet_bn(Xs, replicas, together)
        losses = [summed_loss(z, t) for z, t in zip(logits, ys)]
    B.backward(losses)
    return [sum(B.numpy(B.grad(p)) for p in same) for same in zip(*replicas)]

alone = gradients(1, False)
def equal(others):
    return all(np.allclose(a, b, 1e-10, 1e-10) for a, b in zip(alone, others))
assert equal(gradients(3, True)) and not equal(gradients(3, False))
""",
    "tensor_parallel": """
xs = [B.array(X, place) for place in places]
targets = [B.array(Y / 2, place) for place in places]
params = [[leaf(w, p) for w, p in zip(np.split(W, 4, dim), places)]
          for W, dim in ((W1, 1), (W2, 0))]
for i in range(30):
    with B.record():
        ys = g(*[B.relu(x @ w1) @ w2 for x, w1, w2 in zip(f(*xs), *params)])
        losses = [((y - t) * (y - t)).sum() for y, t in zip(ys, targets)]
    B.backward(losses)
    for p in (p for shards in params for p in shards):
        change = B.grad(p).reshape((-1,)) * -1e-4
        B.write_(p, 0, len(change), change, add=True)
        B.clear_grad_(p)
    values = [float(B.numpy(loss)) for loss in losses]
    assert len({*values}) == 1  # on every device the same
    if i in (0, 29):
        print("loss", values[0])
""",
    "pipeline_parallel": """
stages = [SplitStage(s, 4, devices[s]) for s in range(4)]
run(stages, with_messages(zb_h2(4, 4)), X, y, 4)
for step in range(40):
    for p in (p for stage in stages for p in stage.params):
        B.write_(p, 0, element_count(p), B.grad(p) * (-0.05 / 64), add=True)
        B.clear_grad_(p)
    run(stages, with_messages(zb_h2(4, 4)), X, y, 4)
    if step in (0, 39):
        with B.pause():
            params = [B.array(B.numpy(p)) for s in stages for p in s.params]
            logits = model.forward(B, params, B.array(X))
            print("loss", float(B.numpy(B.cross_entropy(logits, B.array(y)).sum())))
""",
    "parameter_server": """
server = Server(0, 0.1, collect=4)
print("loss", mean_loss(server.params, *probe))
for push in serve(server, parts(), times(), 0):
    pass
print("loss", mean_loss(server.params, *probe))
""",
    "sharding": "",
    "experts": """
history = train(0.1, 0.0, 1, n=4)
print("loss", history[0, 0])
print("loss", history[-1, 0])
""",
    "long_sequences": """
at = deal(23, 4, "zigzag")
Qs, Ks, Vs, targets = (cut(x[:, :23], at) for x in arrays)
for step in range(40):
    outs, logs = ring(Qs, Ks, Vs, at)
    dOs = [out - target for out, target in zip(outs, targets)]
    if step in (0, 39):
        print("loss", sum(float(B.numpy((dO * dO).sum())) for dO in dOs))
    grads = ring_back(Qs, Ks, Vs, at, outs, logs, dOs)
    Qs, Ks, Vs = ([B.detach(x - 0.5 * d) for x, d in zip(xs, dxs)]
                  for xs, dxs in zip((Qs, Ks, Vs), grads))
""",
    "composing": "",
}

HIDE = """
import importlib, inspect, pkgutil, sys
import d2lmulti, d2lmulti.parallel, d2lmulti.training.on_servers

def gone(*_, **__):
    raise RuntimeError("the library's own way to split is hidden here")

for found in pkgutil.walk_packages(d2lmulti.parallel.__path__, "d2lmulti.parallel."):
    importlib.import_module(found.name)
for module in [m for n, m in sys.modules.items() if n.startswith("d2lmulti")]:
    for name, value in list(vars(module).items()):
        if inspect.isroutine(value) and ".parallel" in (value.__module__ or ""):
            setattr(module, name, gone)
"""


# Reads {chapter: source}; writes {chapter: [what it printed, how it failed]}.
RUN = """
import contextlib, io, json, traceback, types

with open(sys.argv[1]) as file:
    pages = json.load(file)
found = {}
for chapter, source in pages.items():
    printed, failed = io.StringIO(), ""
    page = sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        with contextlib.redirect_stdout(printed):
            exec(compile(source, chapter, "exec"), vars(page))
    except Exception:
        failed = traceback.format_exc()
    found[chapter] = printed.getvalue(), failed
with open(sys.argv[2], "w") as file:
    json.dump(found, file)
"""


def built_on_the_page(chapter: str, tab: str) -> list[str]:
    """Return the sources of the tagged cells that run under `tab`, in order."""
    nb = nbformat.read(ROOT / "chapters" / f"{chapter}.ipynb", as_version=4)
    tagged = [c for c in nb.cells if TAG in c.metadata.get("tags", [])]
    split = [split_cell(c.source) for c in tagged]
    sources = [body for asked, body in split if asked.tab in (None, tab)]
    return [s.replace("%load_ext d2lmulti_book.notebook", "") for s in sources]


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(n, marks=[getattr(pytest.mark, n), pytest.mark.xdist_group(n)])
        for n in framework_names()
    ],
)
def ran(request, load, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """For each chapter that is asked for what its cells printed, and how they failed.

    Under the other frameworks the same cells run as a notebook.
    """
    framework = load(request.param)
    pages = {"hidden": "import d2lmulti\nd2lmulti.train_batch()"}
    tests = [getattr(item, "callspec", None) for item in request.session.items]
    asked = [test.params for test in tests if test and "chapter" in test.params]
    for chapter in [p["chapter"] for p in asked if p.get("ran") == framework.name]:
        cells = built_on_the_page(chapter, framework.name)
        assert len(cells) >= 6, chapter
        pages[chapter] = "\n".join([*cells, TRAINS[chapter]])
    folder = tmp_path_factory.mktemp(framework.name)
    given, found = folder / "pages.json", folder / "found.json"
    given.write_text(json.dumps(pages))
    done = subprocess.run(
        [sys.executable, "-c", HIDE + RUN, given, found],
        env=os.environ | {"D2LMULTI_BACKEND": framework.name, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(found.read_text())


@pytest.mark.dealt
@pytest.mark.parametrize("chapter", TRAINS)
def test_the_page_trains_without_the_library(chapter: str, ran) -> None:
    printed, failed = ran[chapter]
    assert not failed, failed
    first, last = [
        float(line.split()[-1]) for line in printed.splitlines() if "loss" in line
    ]
    assert last < first / 2


def test_the_library_is_hidden(ran) -> None:
    assert "hidden here" in ran["hidden"][1]
