"""Devices: names, the framework's own device objects, and GPUs that are not there."""

import pytest

from d2lmulti.backends import parse_device, resolve_device
from d2lmulti.errors import DeviceUnavailable


class Named:
    """A device of the library: whatever prints as a device name."""

    def __init__(self, name):
        self.name = name

    def __str__(self):
        return self.name


def test_a_device_name_has_a_kind_and_a_number():
    names = ["cpu", "cpu:0", "gpu:12", "cuda:3", "sim:7", Named("gpu:1")]
    found = [("cpu", 0), ("cpu", 0), ("gpu", 12), ("gpu", 3), ("sim", 7), ("gpu", 1)]
    assert [parse_device(name) for name in names] == found


@pytest.mark.parametrize(
    ("device", "gpus", "expected"),
    [
        ("cpu", 2, ("cpu", 0)),
        ("sim:1", 0, ("cpu", 0)),
        ("sim:0", 2, ("gpu", 0)),
        ("sim:3", 2, ("gpu", 1)),
        ("sim:5", 1, ("gpu", 0)),
        ("gpu:1", 2, ("gpu", 1)),
        ("gpu:0", 0, None),
        ("gpu:2", 2, None),
    ],
)
def test_simulated_devices_are_dealt_out_over_the_gpus(device, gpus, expected):
    if expected:
        assert resolve_device(device, gpus, "torch") == expected
        return
    with pytest.raises(DeviceUnavailable, match=rf"paddle.*sees {gpus}"):
        resolve_device(device, gpus, "paddle")


def test_one_gpu_too_many_is_unavailable(B):
    with pytest.raises(DeviceUnavailable, match=B.name):
        B.array([1.0], f"gpu:{B.gpu_count()}")


def test_a_tensor_lies_where_it_was_put(B, device):
    kind, index = resolve_device(device, B.gpu_count(), B.name)
    where = "cpu" if kind == "cpu" else f"gpu:{index}"
    x = B.array([1.0, 2.0], device)
    B.attach_grad(x)
    with B.record():
        y = x * 2
    found = [x, B.zeros((2,), "float32", device), y, B.grad(x), B.detach(y)]
    found += [B.copy_to(B.array([1.0]), device), B.read(x, 0, 1), B.read(x, 1, 1)]
    assert [B.device_of(t) for t in found] == [where] * len(found)


def test_the_frameworks_own_device_is_accepted(B, device):
    x = B.zeros((2,), "float32", device)
    attribute = {"torch": "device", "mxnet": "ctx", "paddle": "place"}.get(B.name)
    own = getattr(x, attribute) if attribute else "cpu"
    for same in (own, B.native(device)):
        assert B.device_of(B.array([1.0], same)) == B.device_of(x)
    assert B.native(own) == B.native(B.device_of(x))


def test_synchronize_returns_with_every_result_ready(B, device):
    x = B.array([1.0, 2.0], device)
    y = x + x
    B.synchronize()
    assert B.numpy(y).tolist() == [2.0, 4.0]
