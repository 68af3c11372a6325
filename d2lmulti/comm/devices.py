"""Devices: the machine's real GPUs, or simulated ones when it has too few.

Tensors that the library puts on simulated devices have storage of their own, and every
transfer between two of them is counted. After `track_devices`, a copy that a program
makes itself is counted too, and one that it forgets raises an error, with PyTorch,
MXNet and NumPy. Races and missing waits are not detected. Chapter: *setup*.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass

from ..backends import get_backend, resolve_device
from ..backends.protocol import AnyDevice, Backend
from ..backends.tracking import track
from ..checks import MAX_RANKS, check_count
from ..errors import InvalidInput
from .group import Group, current_group


@dataclass(frozen=True)
class Device:
    """One device: a `gpu`, `sim`, or `cpu`, and its number; `str` gives `gpu:0`."""

    kind: str  #: gpu, sim, or cpu
    index: int = 0  #: from 0

    def __str__(self) -> str:
        return self.kind if self.kind == "cpu" else f"{self.kind}:{self.index}"

    __repr__ = __str__


def devices(
    n: int, backend: str | None = None, simulate: bool | None = None
) -> list[Device]:
    """Return the first n GPUs, or n simulated devices if there are fewer than n GPUs.

    In a started group of n processes the list has one entry, this process's own: a GPU
    that no other process uses, or a simulated device if there are fewer GPUs than
    processes here. Paddle computes on one GPU per process: in one process, its devices
    are simulated for n > 1. `simulate=True` asks for simulated devices also where there
    are GPUs; with `simulate=False` they are an error. Raises `InvalidInput` for n < 1,
    for another n than the group's, and when `simulate=False` asks for more GPUs than
    there are.
    """
    n = check_count("devices", n, max=MAX_RANKS, hint="use devices(1)")
    B = get_backend(backend)
    group, ranks, gpus = current_group.get(), [*range(n)], [*range(n)]
    enough = B.gpu_count() >= n
    if group is not None and group.is_distributed:
        if n != group.size:
            raise InvalidInput(
                f"expected as many devices as the {group.size} processes of the group, "
                f"got {n}; each process has one device"
            )
        own_gpu = _own_gpu(B, group)
        enough = own_gpu is not None
        ranks, gpus = [*group.local_ranks], [own_gpu or 0]
    if simulate is None:
        simulate = not enough
    if not simulate and not enough:
        raise InvalidInput(
            f"expected at most the {B.gpu_count()} GPUs that {B.name} can use, got "
            f"{n} devices; allow simulated ones (simulate=None) or ask for fewer"
        )
    if simulate:
        return [Device("sim", i) for i in ranks]
    return [Device("gpu", i) for i in gpus]


def track_devices(backend: str | None = None) -> ExitStack:
    """Record the simulated device of new tensors, as frameworks record a GPU.

    An operation on tensors of two simulated devices, or of one and the host, then
    raises `RuntimeError`, and a `ledger` also counts what the caller's own framework
    code copies. This holds until the end of the program, or of `with track_devices():`.

    Covered are, with PyTorch, all operations of the calling thread, forward and
    backward; with MXNet and NumPy, those that a program calls, but no backward pass;
    with Paddle, none. Simulated devices then are on the CPU. Where a framework finds
    two GPUs or more, simulated devices are not covered: PyTorch itself distinguishes
    GPUs, and the ledger counts copies between them by `to`, `cpu`, `copy_`, `copyto`.
    """
    return track(get_backend(backend).name)


def _own_gpu(B: Backend, group: Group) -> int | None:
    """Return the number of this process's GPU; None where processes share GPUs.

    An engine that may use NCCL has compared the GPUs of all ranks. For other engines
    the number of GPUs on the machine decides.
    """
    if group.engine.name == B.name:
        return group.engine.gpu  # type: ignore[attr-defined]
    if group.info is None:
        return None
    rank, processes = group.info.local_rank, group.info.local_size
    if hasattr(B, "own_gpu"):  # Paddle's processes see one GPU each
        return B.own_gpu(rank, processes)
    return rank if B.gpu_count() >= processes else None


def with_place(device: str, backend: str | None = None) -> str:
    """Return a device's name, with the GPU of a simulated one: `sim:3 (gpu:1)`."""
    B = get_backend(backend)
    kind, index = resolve_device(device, B.gpu_count(), B.name)
    shown = device.startswith("sim") and kind == "gpu"
    return f"{device} (gpu:{index})" if shown else device


def try_gpu(i: int = 0, backend: str | None = None) -> AnyDevice:
    """Return GPU i if the backend sees it, otherwise the CPU (D2L's `try_gpu`).

    It is the framework's own object (`torch.device`, `mxnet.Context`, a Paddle place),
    which the framework's functions take, and ours as well.
    """
    i = check_count("number of a GPU", i, min=0)
    B = get_backend(backend)
    return B.native(f"gpu:{i}" if i < B.gpu_count() else "cpu")


def try_all_gpus(backend: str | None = None) -> list[AnyDevice]:
    """Return all GPUs that the backend sees, or [cpu] if there are none.

    As with `try_gpu`, they are the framework's own objects.
    """
    count = get_backend(backend).gpu_count()
    return [try_gpu(i, backend) for i in range(max(1, count))]
