"""Horovod's elastic form: a machine is lost, and comes back, in one and the same run.

`horovodrun` reaches the other machine by ssh. Here an `ssh` of our own enters its
network namespace, where no server listens.
"""

from __future__ import annotations

import os
import shlex
import signal
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from processes.launchers import Launchers
from processes.reading import READ
from processes.test_elastic import ARGUMENTS, on_one_device

SSH = """#!/bin/bash
while [[ $1 == -o ]]; do shift 2; done
case $1 in
{}
esac
shift
while [[ $1 == -o ]]; do shift 2; done
exec "${{there[@]}}" bash -c "$*"
"""
# Horovod finds its address for one of its connections by the machine's own name.
NAMED = "unshare --uts sh -c 'echo {} >/proc/sys/kernel/hostname; exec \"$@\"' sh"
HOROVODRUN = (
    "{folder}/horovodrun --gloo --network-interfaces cable0 -np 2 --min-np 1 "
    "--max-np 2 --blacklist-cooldown-range 1 2 --host-discovery-script ../hosts "
    "--gloo-timeout-seconds 250 {python} {script}"  # for the start of the other
)
AN_EPOCH = 24 * 6090 * 8  # bytes of gradients


@pytest.mark.torch
@pytest.mark.usefixtures("horovod")
def test_it_goes_on_alone_and_takes_the_machine_back(
    load: Callable, machines: list[Any], tmp_path: Path, monkeypatch: Any
) -> None:
    load("torch")
    if not machines[0].prefix:
        pytest.skip("needs the right to make network namespaces")
    machines = [
        m._replace(prefix=[*m.prefix, *shlex.split(NAMED.format(m.address))])
        for m in machines
    ]
    for machine in machines:
        words = [*machine.prefix, "cat", "/proc/sys/kernel/hostname"]
        if subprocess.check_output(words, text=True).strip() != machine.address:
            pytest.skip("needs the right to give a machine a name")
    there = [f"{m.address}) there=({shlex.join(m.prefix)});;" for m in machines]
    hosts = [f"echo {m.address}:1" for m in machines]
    for name, text in [
        ("ssh", SSH.format("\n".join(there))),
        ("hosts", "\n".join(["#!/bin/sh", *hosts])),
    ]:
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    path = tmp_path / "run"
    arguments = [*ARGUMENTS, str(path), "--epochs", "1000"]
    name, first, second = "pytorch_elastic", machines[:1], machines[1]
    with Launchers(name, first, tmp_path, arguments, HOROVODRUN) as run:
        run.wait_until(run.epochs)
        namespace = second.prefix[second.prefix.index("exec") + 1]
        pids = subprocess.check_output(["ip", "netns", "pids", namespace], text=True)
        for pid in pids.split():
            os.kill(int(pid), signal.SIGKILL)
        both = max(run.epochs())
        run.wait_until(lambda: max(run.epochs()) > both + 1)
        before = second.received()
        run.wait_until(lambda: second.received() > before + AN_EPOCH)
    epochs = epochs_of(path)
    assert epochs > both
    weights = READ[name](path), on_one_device(epochs, tmp_path / "alone", monkeypatch)
    for p, q in zip(*weights, strict=True):
        assert np.abs(p - q).max() <= 1e-12 * np.abs(q).max()


def epochs_of(checkpoint: Path) -> int:
    import torch

    epochs: int = torch.load(checkpoint, weights_only=True)["epochs"]
    return epochs
