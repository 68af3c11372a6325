"""The tests that CS336 hands its learners, on our library; they are not copied here.

Clone https://github.com/stanford-cs336/assignment2-systems, install what its
`cs336_basics` imports (einops, einx, jaxtyping), and say where the clone is:
`CS336=<clone> python -m pytest tests/peers/test_cs336.py`. Without it our own steps
use the adapters, in `tests/processes/test_modules_in_buckets.py`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ADAPTERS = Path(__file__).parent / "cs336" / "adapters.py"
HERE = Path(__file__).parents[2]
# In the edition of 2025, buckets of three sizes; in that of 2026, FSDP.
FILES = ("ddp", "ddp_individual_parameters", "fsdp", "sharded_optimizer")
# Their weights in float32 must be the same bits as of one device. Two halves of a batch
# add up to those of the whole only where the processor's matrix product adds in such an
# order, whatever is between them, so the copy that is run allows for rounding there.
EXACT = "torch.equal(np_param.data, fsdp_full)"
CLOSE = "torch.allclose(np_param.data, fsdp_full, rtol=1e-5, atol=1e-7)"


@pytest.mark.torch
@pytest.mark.timeout(1800)
@pytest.mark.skipif(
    "CS336" not in os.environ, reason="CS336=<a clone of assignment2-systems>"
)
@pytest.mark.parametrize("name", FILES)
def test_the_tests_of_cs336_pass(name: str, tmp_path: Path) -> None:
    clone = Path(os.environ["CS336"]).absolute()
    file = clone / "tests" / f"test_{name}.py"
    if not file.exists():
        pytest.skip(f"this edition has no {file.name}")
    copy = shutil.copytree(clone / "tests", tmp_path / "tests")
    shutil.copy(ADAPTERS, copy / "adapters.py")
    text = file.read_text()
    (copy / file.name).write_text(text.replace(EXACT, CLOSE))
    paths = [tmp_path, clone / "cs336-basics", HERE, os.environ.get("PYTHONPATH", "")]
    beside = {"PYTHONPATH": os.pathsep.join(map(str, paths))}
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider",
         "-p", "no:nbval", f"tests/{file.name}"],
        cwd=tmp_path, env={**os.environ, **beside}, capture_output=True, text=True,
    )  # fmt: skip
    sys.stdout.write(run.stdout)
    assert run.returncode == 0, run.stdout[-3000:]
