"""Put tensors on devices, and compare what a reader's function made of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from ..backends import backend_of
from ..backends.protocol import Backend
from ..comm.devices import devices
from ..errors import D2LMultiError
from .report import FORM, Wrong, origin, said

Arrays = Sequence[np.ndarray]
Mistakes = Iterable[tuple[str, Arrays]]  # in words, and what an answer with it is

CLOSE = 1e-9  # relative: float64 in another order differs by less, a mistake by more


def unchanged(tensors: Sequence[Any], values: Arrays) -> None:
    """Raise `Wrong` if the reader's function wrote to its inputs."""
    if len(tensors) != len(values):
        found = f"A list had {len(values)} tensors, and now has {len(tensors)}."
        raise Wrong(found, "The function changed a list, which its caller still needs.")
    for i, (x, value) in enumerate(zip(tensors, values, strict=True)):
        if not np.array_equal(host(x), value):
            words = "The function wrote to an input, which its caller still needs."
            raise Wrong(f"Input {i} is not what it was.", words)


def write_first(B: Backend, x: Any, value: Any) -> None:
    """Write to the first element of what the reader's function returned."""
    if isinstance(x, np.ndarray):
        x.flat[:1] = value
    else:
        B.write_(x, 0, 1, B.array(np.full(1, value, host(x).dtype)))


def separate(B: Backend, tensors: dict[str, Any], words: str) -> None:
    """Raise `Wrong` if writing to one tensor changes another; keep their values."""
    marked: list[tuple[str, Any, np.ndarray]] = []
    for name, x in tensors.items():
        value = host(x).reshape(-1)[:1].copy()
        with suppress(D2LMultiError, RuntimeError):  # a strided view cannot be marked
            write_first(B, x, len(marked))
            marked.append((name, x, value))
    for i, (name, x, _) in enumerate(marked):
        for mark in host(x).reshape(-1)[:1]:
            if mark != i:
                other = marked[int(mark)][0]
                raise Wrong(f"Writing to {other} changed {name}.", words)
    for _, x, value in marked:
        write_first(B, x, value)


def gradients(B: Backend, losses: Sequence[Any], xs: Sequence[Any], words: str) -> Any:
    """Return the gradients of the sum of recorded losses."""
    try:
        B.backward(losses)
        return [host(B.grad(x)) for x in xs]
    except Exception as error:
        raise Wrong(
            f"A backward pass raised {said(error)}.", origin(error, words)
        ) from error


def places(B: Backend, count: int) -> list[Any]:
    """Return the framework's devices: GPUs where there are enough, else simulated."""
    return [B.native(device) for device in devices(count, B.name)]


def placed(B: Backend, values: Arrays) -> list[Any]:
    """Return a tensor per array, each on a device of its own."""
    return [
        B.array(v, at) for v, at in zip(values, places(B, len(values)), strict=True)
    ]


def host(x: Any) -> np.ndarray:
    """Copy what the reader's function returned to a NumPy array."""
    return x if isinstance(x, np.ndarray) else np.asarray(backend_of(x).numpy(x))


def same(a: np.ndarray, b: np.ndarray, close: float = CLOSE) -> bool:
    """Tell whether two arrays agree up to rounding."""
    if a.shape != b.shape:
        return False
    size = np.nanmax(np.abs(b), initial=1e-300)
    off = np.abs(a - b)  # nan if one of them is
    return bool(np.all((off <= close * size) | np.isnan(a) & np.isnan(b)))


def all_same(got: Arrays, right: Arrays, close: float = CLOSE) -> bool:
    """Tell whether two lists of arrays agree."""
    pairs = zip(got, right, strict=False)
    return len(got) == len(right) and all(same(a, b, close) for a, b in pairs)


def same_bits(replicas: Sequence[Arrays]) -> None:
    """Raise `Wrong` unless all devices have the same values, to the last bit."""
    for r, replica in enumerate(replicas):
        for a, b in zip(replica, replicas[0], strict=True):
            if not np.array_equal(a, b):
                found = f"Devices 0 and {r} differ by {np.abs(a - b).max():.0e}."
                words = "They add in another order, so that their replicas drift apart."
                raise Wrong(found, words)


ROUNDED = "This is as accurate as float32, but the inputs are float64: a cast does \
that, or a small constant that is added."
NOT_FINITE = "Something overflowed, or 0 was divided by 0. Before exp, subtract the \
maximum."


def compare(
    answer: Sequence[Any],
    right: Arrays,
    mistakes: Mistakes = (),
    what: str | Sequence[str] = "device {}",
    close: float = CLOSE,
) -> None:
    """Raise `Wrong` unless the arrays agree, up to `close` of the largest value.

    `what` names each array, or any by its number.
    """
    got = [host(x) for x in answer]
    if all_same(got, right, close):
        return
    alike = [words for words, wrong in mistakes if all_same(got, wrong, close)]
    if not alike and all_same(got, right, 1e-5):
        alike = [ROUNDED]
    if not alike and [x.shape for x in got] != [x.shape for x in right]:
        alike = [FORM]
    if not alike and not all(np.isfinite(x).all() for x in got):
        alike = [NOT_FINITE]
    raise Wrong(difference(got, right, what, close), *alike)


def compare_rows(
    answer: Sequence[Any], right: np.ndarray, mistakes: Any, cuts: Sequence[slice]
) -> None:
    """Compare where device i should have the rows `cuts[i]` of one array."""
    wrong = [(words, [whole[c] for c in cuts]) for words, whole in mistakes]
    compare(answer, [right[c] for c in cuts], wrong)


def wrong_sums(values: Arrays, own: str) -> list[tuple[str, Arrays]]:
    """List what devices have whose values are summed in wrong ways, or not: `own`."""
    n, total = len(values), np.sum(values, axis=0)
    late: list[np.ndarray] = []  # each sums all, and writes it before the next one does
    for r in range(n):
        late.append(sum(late, np.sum(values[r:], axis=0)))
    return [
        ("Only device 0 has the sum: it was not sent back.", [total, *values[1:]]),
        (own, values),
        ("This is the mean, and not the sum.", [total / n] * n),
        ("This is the maximum, and not the sum.", [np.max(values, axis=0)] * n),
        ("Device 0's own values are missing.", [total - values[0]] * n),
        ("Device 0's own values are counted twice.", [total + values[0]] * n),
        ("The last device's values are missing.", [total - values[-1]] * n),
        ("Each device counts its own values twice.", [total + x for x in values]),
        ("Each device's own values are missing from its sum.",
         [total - x for x in values]),
        ("Each device has added those before it: sums were read while others wrote.",
         list(np.cumsum(values, axis=0))),
        ("Sums were read while others wrote: devices add what is a sum already.", late),
        ("Each device has only its own values and its left neighbor's.",
         [values[r] + values[r - 1] for r in range(n)]),
    ]  # fmt: skip


def difference(
    got: Arrays, right: Arrays, what: str | Sequence[str], close: float
) -> str:
    """Name the first place where two lists of arrays differ."""
    if len(got) != len(right):
        return f"Expected {len(right)} tensors, got {len(got)}."
    for i, (a, b) in enumerate(zip(got, right, strict=True)):
        name = what.format(i) if isinstance(what, str) else what[i]
        if a.shape != b.shape:
            return f"{name}: expected the shape {b.shape}, got {a.shape}."
        if not same(a, b, close):
            at = np.unravel_index(np.argmax(np.abs(a - b)), a.shape)
            place = f", element {', '.join(map(str, at))}" if at else ""
            digits = 6 if f"{a[at]:.6g}" != f"{b[at]:.6g}" else 12
            told = f"expected {b[at]:.{digits}g}, got {a[at]:.{digits}g}"
            return f"{name}{place}: {told}."
    return "No difference."
