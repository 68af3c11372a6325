"""What the chapters print does not depend on GPUs: the CPU poses as two of them.

The pose is in tests/posed. Every chapter on 1, 2 and 8 posed GPUs: `make test-posed`.
"""

import os
import subprocess
import sys

import pytest
import run_notebooks
from book.notebooks import ROOT

TWO = run_notebooks.posing("2")
pytestmark = pytest.mark.usefixtures("posable")

LIES_WHERE_IT_SAYS = """\
import threading, torch, d2lmulti
B, heard = d2lmulti.get_backend("torch"), []
assert [str(d) for d in d2lmulti.devices(2, backend="torch")] == ["gpu:0", "gpu:1"]
x, y = (torch.tensor([1.0, 2.0], device=f"cuda:{i}") for i in (0, 1))
assert str(y * 2) == "tensor([2., 4.], device='cuda:1')"
assert B.device_of(y) == "gpu:1" and y.to(0).device == x.device != y.device
assert y.to("cuda:1") is y and y.cpu().tolist() == B.numpy(y).tolist() == [1.0, 2.0]
w = y.clone().requires_grad_()
w.register_post_accumulate_grad_hook(lambda _: heard.append(threading.get_ident()))
(w * w).sum().backward()
assert str(w.grad) == "tensor([2., 4.], device='cuda:1')"
assert heard != [threading.get_ident()]  # as with a GPU's gradients
some, ends = d2lmulti.load("digits").first(128), []
for way in ("data", "tensor", "pipeline"):
    run = d2lmulti.train(
        2, 64, 0.1, epochs=1, model="deep_mlp", strategy=way, dataset=some,
        backend="torch",
    )
    ends.append(run.losses[-1])
assert max(ends) - min(ends) < 1e-4, ends
"""
REFUSED = {
    "torch.ones(2, device='cuda:1') + torch.ones(2, device='cuda:0')": "same device",
    "torch.ones(2, device='cuda:1') + torch.ones(2)": "cpu and cuda:1",
    "torch.ones(2, device='cuda:0').numpy()": "can't convert cuda:0 device",
    "torch.ones(2, device='cuda:2')": "invalid device ordinal",
    "torch.empty(2**38, device='cuda')": "CUDA out of memory",
}


def test_a_posed_tensor_lies_where_it_says_and_refuses_what_gpus_refuse():
    program = LIES_WHERE_IT_SAYS
    for call in REFUSED:
        program += f"try: {call}\nexcept Exception as error: print(error)\n"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | TWO,
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.stderr == ""
    for words, line in zip(REFUSED.values(), done.stdout.splitlines(), strict=True):
        assert words in line


def test_a_chapter_prints_on_two_gpus_what_it_prints_on_none():
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "--nbval"]
    done = subprocess.run(
        [*command, "-p", "no:cacheprovider", "chapters/devices.ipynb"],
        env=os.environ | TWO | {"D2LMULTI_BACKEND": "torch"},
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "GPU" not in done.stdout  # no cell was skipped for want of one
