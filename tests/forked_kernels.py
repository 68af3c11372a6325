"""Start a chapter's kernel as a fork of a process that has imported its framework.

Importing a framework and what surrounds it takes three times as long as starting a
kernel. The standard library's fork server does it once for all chapters that a worker
of pytest runs. It imports only other people's packages, nothing of this repository, and
computes nothing, so no framework has started a thread when it forks.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import runpy
import sys
from importlib.metadata import EntryPoint
from multiprocessing import forkserver
from typing import Any
from unittest import mock

from jupyter_client.provisioning import KernelProvisionerFactory, LocalProvisioner

# Not pyplot: it asks, at its import, whether a notebook is running.
PRELOADED = ["ipykernel.kernelapp", "matplotlib.backends.backend_agg"]


class ForkedProcess:
    """What LocalProvisioner asks, on Linux, of a `subprocess.Popen`."""

    stdin = stdout = stderr = None

    def __init__(self, process: multiprocessing.process.BaseProcess) -> None:
        self._process = process
        self.pid = process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self) -> int | None:
        self._process.join()
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)


class ForkingProvisioner(LocalProvisioner):
    """Start and end kernels as Jupyter does, but by a fork."""

    async def launch_kernel(self, cmd: list[str], **kwargs: Any) -> Any:
        env, cwd = kwargs["env"], kwargs["cwd"]
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([*PRELOADED, env["D2LMULTI_BACKEND"]])
        # Matplotlib asks at its import which backend it gets: in a kernel, this one.
        inline = "module://matplotlib_inline.backend_inline"
        with mock.patch.dict(os.environ, env, MPLBACKEND=inline):
            forkserver.ensure_running()
        process = context.Process(target=run_kernel, args=(cmd[1:], env, cwd))
        process.start()
        self.process = ForkedProcess(process)
        self.pid = self.pgid = process.pid
        return self.connection_info


def run_kernel(arguments: list[str], env: dict[str, str], cwd: str) -> None:
    """Become what `python -m module ...` would be; `arguments` begin with `-m`."""
    os.setsid()
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env, JPY_PARENT_PID=str(os.getppid()))  # it ends with that one
    sys.path[:0] = env["PYTHONPATH"].split(os.pathsep)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    sys.argv = arguments[1:]
    runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)


def use(forked: bool) -> None:
    """Choose how the next kernel starts; where nothing can fork, as Jupyter does."""
    factory = KernelProvisionerFactory.instance()
    where = f"{__name__}:{ForkingProvisioner.__name__}"
    factory.provisioners["fork"] = EntryPoint("fork", where, factory.GROUP_NAME)
    forked &= sys.platform == "linux"  # a Mac's own libraries do not survive a fork
    factory.default_provisioner_name = "fork" if forked else "local-provisioner"
