"""What each device holds under ZeRO 1, 2 and 3, and how the whole comes back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ...backends import backend_of
from ...backends.protocol import AnyDevice, Tensor, element_count
from ...checks import check_count, check_kind, check_list
from ...comm.collectives import allgather
from ...comm.group import Group, group_for
from ...comm.split import load
from ...errors import InvalidInput
from ...events import mark
from ...models import get_model
from ...models.lenet import LENET
from ...models.model import Model
from ...optimizers.sgd import zeros_like
from ...plans.rounds import even_bounds
from .precision import check_precision
from .units import Unit, cut_units

Flats = list[list[Tensor]]  # of each device, one flat vector for each unit


class ShardedParams(Flats):
    """What each device holds: a flat vector a layer, whole or (ZeRO 3) its own part.

    Made by `shard_params`. `bounds` say from where to where each own part goes. In
    mixed precision they are in 16 bits, and `masters` are the own parts in float32.
    """

    def __init__(
        self, flats: Iterable[list[Tensor]], zero: int, model: Model,
        units: Sequence[Unit], bounds: Sequence[Sequence[tuple[int, int]]],
        low: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__(flats)
        self.zero, self.model, self.units, self.bounds = zero, model, units, bounds
        self.low = low
        self.masters: Flats = []
        if low:
            self.masters = [[*map(_copy, mine)] for mine in self._own()]
            self[:] = [[backend_of(p).cast(p, low) for p in mine] for mine in self]
        self._grads: Flats = []
        if zero == 2:
            self._grads = [
                [zeros_like(p.shape, p) for p in mine] for mine in self._own()
            ]
        else:
            attach_grads(self)

    @property
    def grads(self) -> Flats:
        """The gradients that are kept: of the whole with ZeRO 1, of the own part else.

        The own part is summed over all devices; the rest is what was passed on.
        """
        if self.zero == 2:
            return self._grads
        return [[backend_of(p).grad(p) for p in mine] for mine in self]

    def parts(self) -> Flats:
        """Give every device's own parts: with ZeRO 3 all it has, otherwise copies.

        In mixed precision they are copies of the masters.
        """
        if self.zero == 3 and not self.low:
            return [*self]
        return [[*map(_copy, mine)] for mine in self.to_update()]

    def to_update(self) -> Flats:
        """Give the own parts, or the masters; the backend may share storage or copy."""
        if self.low:
            return [[backend_of(p).detach(p) for p in mine] for mine in self.masters]
        return self._own()

    def update_(self, parts: Flats) -> Flats:
        """Keep updated parts; give them in the dtype that is sent."""
        if not self.low:
            return parts
        for masters, mine in zip(self.masters, parts, strict=True):
            for master, p in zip(masters, mine, strict=True):
                backend_of(p).write_(master, 0, element_count(p), p)
        return [[backend_of(p).cast(p, self.low) for p in mine] for mine in parts]

    def _own(self) -> Flats:
        if self.zero == 3:
            return [*self]
        pairs = zip(self, self.bounds, strict=True)
        return [
            [backend_of(p).read(p, *cut) for p, cut in zip(mine, cuts, strict=True)]
            for mine, cuts in pairs
        ]


def shard_params(
    params: Sequence[Tensor],
    devices: Sequence[AnyDevice],
    model: str | Model = LENET,
    zero: int = 3,
    group: Group | None = None,
    precision: str | None = None,
) -> ShardedParams:
    """Copy to every device what it holds of the parameters under ZeRO 1, 2 or 3.

    Each layer's parameters become one vector, which `even_bounds` cuts into one part a
    device; sizes need not divide, and parts may be empty. The optimizer's state belongs
    to the parts: `[optimizer.start(mine) for mine in sharded.parts()]`. With the
    `precision` bf16 or fp16, layers are held, computed and sent in 16 bits, and each
    device keeps its own parts in float32 besides. Raises `InvalidInput` for a model
    that is no sequence of layers, for parameters that are not the model's or differ in
    dtype, for another `zero`, and for a precision that the backend cannot compute in.
    """
    check_list("devices", devices, "devices", hint="use devices(1)")
    check_list("params", params, "tensors", hint="take them from model.initial(rng)")
    B = backend_of(params[0])
    model, zero = get_model(model), check_count("zero", zero, max=3)
    units = cut_units(model, params)
    low = check_precision(B, precision, B.dtype_of(params[0]), devices[0])
    group = group_for(len(devices), group)
    cuts = [even_bounds(unit.size, group.size) for unit in units]
    bounds = [[cut[rank] for cut in cuts] for rank in group.local_ranks]
    flats: Flats = []
    for device, own in zip(devices, bounds, strict=True):
        rest, mine = iter(params), []
        for unit, (first, last) in zip(units, own, strict=True):
            with B.pause():
                flat = B.concat([next(rest).reshape((-1,)) for _ in unit.shapes])
                flat = B.read(flat, first, last) if zero == 3 else flat
                mine.append(load(flat, device))
        flats.append(mine)
    return ShardedParams(flats, zero, model, units, bounds, low)


def gather_shards(
    sharded: ShardedParams, group: Group | None = None
) -> list[list[Tensor]]:
    """Give every device a copy of the whole parameters, in the model's shapes.

    What a device holds whole is its own, so a copy that went astray is seen. In mixed
    precision the masters are gathered.
    """
    check_sharded(sharded)
    flats: Sequence[Sequence[Tensor]] = sharded
    if sharded.zero == 3 or sharded.low:
        flats = gather_parts(sharded.masters or sharded, group)
    return in_shapes(sharded.units, flats)


def gather_parts(
    parts: Sequence[Sequence[Tensor]], group: Group | None = None
) -> list[list[Tensor]]:
    """Give every device the whole flat vectors, of parameters or of their state."""
    same = []
    for each in zip(*parts, strict=True):
        with backend_of(each[0]).pause():
            same.append(allgather(each, group))
        mark("all-gather")
    return [list(mine) for mine in zip(*same, strict=True)]


def in_shapes(
    units: Sequence[Unit], flats: Sequence[Sequence[Tensor]]
) -> list[list[Tensor]]:
    """Copy whole flat vectors to the shapes of the parameters."""
    B = backend_of(flats[0][0])
    with B.pause():
        return [
            [
                B.copy_to(p, B.device_of(p))
                for unit, flat in zip(units, mine, strict=True)
                for p in unit.unflatten(flat)
            ]
            for mine in flats
        ]


def attach_grads(flats: Iterable[Iterable[Tensor]]) -> None:
    """Let every one of these vectors collect a gradient."""
    for mine in flats:
        for p in mine:
            backend_of(p).attach_grad(p)


def _copy(x: Tensor) -> Tensor:
    B = backend_of(x)
    return B.copy_to(x, B.device_of(x))


def check_sharded(sharded: ShardedParams, devices: int | None = None) -> None:
    """Refuse what `shard_params` has not made, or has made for other devices."""
    hint = "make it with shard_params(params, devices, model)"
    check_kind("sharded", sharded, ShardedParams, "sharded parameters", hint)
    if devices is not None and len(sharded) != devices:
        raise InvalidInput(
            f"expected the shards of {devices} devices, got those of {len(sharded)}; "
            "pass the devices that shard_params was given"
        )
