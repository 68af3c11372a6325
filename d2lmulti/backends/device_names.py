"""Device names, the same for every framework: `cpu`, `gpu:0`, `sim:1`."""

from __future__ import annotations

import re

from ..errors import DeviceUnavailable, InvalidInput

_NAME = re.compile(r"(?:cpu(?::0)?|(gpu|cuda|sim):([0-9]+))")


def parse_device(device: object) -> tuple[str, int]:
    """Split a device (anything whose `str` is a device name) into kind and index.

    `cuda:1` is read as `gpu:1`. Raises `InvalidInput` for anything else.
    """
    match = _NAME.fullmatch(str(device))
    if match is None or isinstance(device, (int, float)):
        raise InvalidInput(
            f"expected a device such as 'cpu', 'gpu:0' or 'sim:1', got {device!r}; "
            "list this machine's devices with `python -m d2lmulti doctor`"
        )
    kind, index = match.groups()
    if kind is None:
        return "cpu", 0
    return ("sim" if kind == "sim" else "gpu"), int(index)


def resolve_device(device: object, gpu_count: int, framework: str) -> tuple[str, int]:
    """Decide the physical place of a device: ("cpu", 0) or ("gpu", i).

    Simulated devices are dealt out over the GPUs in turn, or all lie on the CPU.
    Raises `DeviceUnavailable` for a GPU that the framework does not see.
    """
    kind, index = parse_device(device)
    if kind == "sim":
        return ("gpu", index % gpu_count) if gpu_count else ("cpu", 0)
    if kind == "gpu" and index >= gpu_count:
        raise DeviceUnavailable(
            f"expected a GPU that {framework} can use, got gpu:{index} where it sees "
            f"{gpu_count}; use devices(n), which simulates the missing ones, or 'cpu'"
        )
    return kind, index
