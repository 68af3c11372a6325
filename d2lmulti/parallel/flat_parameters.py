"""The flat, sharded parameters of ZeRO 1, 2, and 3, and how to gather them.

In mixed precision, layers are stored, computed, and sent in 16 bits. An update is small
compared with its weight: in bfloat16, with 8 significant bits, adding less than 1/256
of a weight changes nothing. So each rank also stores its shard of the weights in
float32, the *master weights*, and its optimizer updates those.
Source: Micikevicius et al. (2018). Chapter: *sharding*.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from ..backends import backend_of, element_count
from ..backends.protocol import AnyDevice, Backend, Tensor
from ..checks import check_choice, check_count, check_list, check_params
from ..comm.collectives import allgather, reduce_scatter
from ..comm.group import Group, exchange, group_for
from ..errors import InvalidInput
from ..events import notify
from ..models import get_model
from ..models.networks import Layer, Model
from ..optimizers import zeros_like
from ..plans.collectives import ring_allgather
from ..plans.rounds import Round, even_bounds, even_edges
from .step import load

Flats = list[list[Tensor]]  # per device, one flat vector per layer
PRECISIONS = {"bf16": "bfloat16", "fp16": "float16"}


class FlatParameter(NamedTuple):
    """One layer's parameters as one flat vector, which is gathered as a unit."""

    layers: tuple[Layer, ...]  # one, and its neighbors without parameters
    shapes: tuple[tuple[int, ...], ...]  # of the parameters

    @property
    def name(self) -> str:
        """Return the name of the layer."""
        return next(layer.name for layer in self.layers if layer.params)

    @property
    def size(self) -> int:
        """Return the number of elements of the flat vector."""
        return sum(map(math.prod, self.shapes))

    def unflatten(self, flat: Tensor) -> list[Tensor]:
        """Slice the parameters out of the flat vector."""
        params, first = [], 0
        for shape in self.shapes:
            last = first + math.prod(shape)
            params.append(flat[first:last].reshape(shape))
            first = last
        return params


class ShardedParams(Flats):
    """Per device and layer a flat vector, or (ZeRO 3) the device's shard of it.

    Made by `shard_params`. `bounds` are the limits of each device's shards. In mixed
    precision the vectors have the `compute_dtype`, and `master_weights` are the
    device's shards in float32.
    """

    def __init__(
        self,
        flats: Iterable[list[Tensor]],
        zero: int,
        model: Model,
        flat_params: Sequence[FlatParameter],
        bounds: Sequence[Sequence[tuple[int, int]]],
        compute_dtype: str | None = None,
    ) -> None:
        super().__init__(flats)
        self.zero, self.model = zero, model
        self.flat_params, self.bounds = flat_params, bounds
        self.compute_dtype = compute_dtype
        self.master_weights: Flats = []
        if compute_dtype:
            self.master_weights = [[*map(_copy, own)] for own in self._own_shards()]
            self[:] = [
                [backend_of(p).cast(p, compute_dtype) for p in held] for held in self
            ]
        self._grads: Flats = []
        if zero == 2:
            self._grads = [
                [zeros_like(p.shape, p) for p in own] for own in self._own_shards()
            ]
        else:
            attach_grads(self)

    @property
    def grads(self) -> Flats:
        """Return the stored gradients: full vectors with ZeRO 1, shards with 2 and 3.

        A device's own shards are summed over all devices; the rest of a full vector is
        not.
        """
        if self.zero == 2:
            return self._grads
        return [[backend_of(p).grad(p) for p in vectors] for vectors in self]

    def parts(self) -> Flats:
        """Return copies of each device's shards, or of its master weights."""
        return [[*map(_copy, own)] for own in self.to_update()]

    def to_update(self) -> Flats:
        """Return the tensors that the optimizer updates, as views or copies."""
        if self.compute_dtype:
            return [
                [backend_of(p).detach(p) for p in own] for own in self.master_weights
            ]
        return self._own_shards()

    def _own_shards(self) -> Flats:
        if self.zero == 3:
            return [*self]
        return [
            [
                backend_of(p).read(p, *limit)
                for p, limit in zip(vectors, limits, strict=True)
            ]
            for vectors, limits in zip(self, self.bounds, strict=True)
        ]


def shard_params(
    params: Sequence[Tensor],
    devices: Sequence[AnyDevice],
    model: str | Model = "lenet",
    zero: int = 3,
    group: Group | None = None,
    precision: str | None = None,
) -> ShardedParams:
    """Copy to every device its parameters, or shards of them, for ZeRO 1, 2, or 3.

    Each layer's parameters become one vector, which `even_bounds` cuts into one shard
    per device; sizes need not divide evenly, and shards may be empty. Optimizer states
    belong to the shards: `[optimizer.init(own) for own in sharded.parts()]`. With
    `precision` bf16 or fp16, layers are stored, computed, and sent in 16 bits, and each
    device also stores its shards in float32. Raises `InvalidInput` for a model
    that is not a sequence of layers, for parameters of another model or of several
    dtypes, for another `zero`, and for a precision that the backend cannot compute in.
    """
    check_list("devices", devices, "devices", hint="use devices(1)")
    check_list("params", params, "tensors", hint="take them from model.initial(rng)")
    B = backend_of(params[0])
    model, zero = get_model(model), check_count("zero", zero, max=3)
    flat_params = flatten_layers(model, params)
    compute_dtype = check_precision(B, precision, B.dtype_of(params[0]), devices[0])
    group = group_for(len(devices), group)
    limits = [even_bounds(layer.size, group.size) for layer in flat_params]
    bounds = [[layer[rank] for layer in limits] for rank in group.local_ranks]
    flats: Flats = []
    for device, device_bounds in zip(devices, bounds, strict=True):
        remaining, vectors = iter(params), []
        for layer, (first, last) in zip(flat_params, device_bounds, strict=True):
            with B.pause():
                flat = B.concat([next(remaining).reshape((-1,)) for _ in layer.shapes])
                flat = B.read(flat, first, last) if zero == 3 else flat
                vectors.append(load(flat, device))
        flats.append(vectors)
    return ShardedParams(flats, zero, model, flat_params, bounds, compute_dtype)


def gather_shards(sharded: ShardedParams) -> list[list[Tensor]]:
    """Return a copy of all parameters for every device, in the model's shapes.

    Vectors that a device has in full are copied from that device, so replicas that
    differ stay visible. In mixed precision the master weights are gathered.
    """
    flats: Sequence[Sequence[Tensor]] = sharded
    if sharded.zero == 3 or sharded.compute_dtype:
        flats = gather_parts(sharded.master_weights or sharded)
    return unflatten(sharded.flat_params, flats)


def gather_parts(parts: Sequence[Sequence[Tensor]]) -> list[list[Tensor]]:
    """All-gather the flat vectors of parameters, or of optimizer states."""
    gathered = []
    for shards in zip(*parts, strict=True):
        with backend_of(shards[0]).pause():
            gathered.append(allgather(shards))
        notify("on_mark", "all-gather")
    return [list(flats) for flats in zip(*gathered, strict=True)]


def unflatten(
    flat_params: Sequence[FlatParameter], flats: Sequence[Sequence[Tensor]]
) -> list[list[Tensor]]:
    """Copy each device's flat vectors to tensors in the shapes of the parameters."""
    with backend_of(flats[0][0]).pause():
        return [
            [
                _copy(p)
                for layer, flat in zip(flat_params, vectors, strict=True)
                for p in layer.unflatten(flat)
            ]
            for vectors in flats
        ]


def flatten_layers(model: Model, params: Sequence[Tensor]) -> list[FlatParameter]:
    """Return one flat parameter for each layer that has parameters."""
    if not model.layers:
        raise InvalidInput(
            f"cannot shard {model.name!r} layer by layer: it is not written as a "
            "sequence of layers; use a model with `layers`, such as lenet, or the "
            "strategy data"
        )
    check_params(params, sum(layer.params for layer in model.layers))
    dtypes = {backend_of(p).dtype_of(p) for p in params}
    if len(dtypes) > 1:
        raise InvalidInput(
            f"expected parameters of one dtype, got {' and '.join(sorted(dtypes))}; a "
            "layer's become one vector, so convert them to one dtype"
        )
    shapes = iter([tuple(int(extent) for extent in p.shape) for p in params])
    flat_params: list[FlatParameter] = []
    for layer in model.layers:
        layer_shapes = tuple(next(shapes) for _ in range(layer.params))
        if flat_params and not (layer_shapes and flat_params[-1].shapes):
            layers, before = flat_params.pop()  # it, or this layer, has no parameters
            flat_params.append(FlatParameter((*layers, layer), before + layer_shapes))
        else:
            flat_params.append(FlatParameter((layer,), layer_shapes))
    return flat_params


def attach_grads(flats: Iterable[Iterable[Tensor]]) -> None:
    """Attach a gradient to each of these tensors."""
    for tensors in flats:
        for p in tensors:
            backend_of(p).attach_grad(p)


def check_precision(
    B: Backend, precision: str | None, dtype: str, device: AnyDevice
) -> str | None:
    """Return the dtype to compute in, or None.

    Raises `InvalidInput` for a precision that the device cannot compute in.
    """
    if precision is None:
        return None
    check_choice("precision", precision, PRECISIONS)
    if dtype != "float32":
        raise InvalidInput(
            f"expected parameters in float32 for the master weights of {precision}, "
            f"got {dtype}; make them float32, or leave precision out"
        )
    compute_dtype = PRECISIONS[precision]
    try:
        x = B.cast(B.zeros((1, 1), "float32", device), compute_dtype)
        B.numpy(x @ x)
    except (InvalidInput, RuntimeError, TypeError, NotImplementedError) as error:
        raise InvalidInput(
            f"expected a precision that {B.name} computes in on {device}, got "
            f"{precision}; on CPUs torch has bf16 and fp16, numpy fp16, mxnet and "
            "paddle neither. Leave precision out"
        ) from error
    return compute_dtype


def _copy(x: Tensor) -> Tensor:
    B = backend_of(x)
    return B.copy_to(x, B.device_of(x))


def gather_flat(shards: Sequence[Tensor], size: int, group: Group) -> list[Tensor]:
    """Return the full flat vector of `size` elements, new on every device."""
    B, bounds, flats = backend_of(shards[0]), even_bounds(size, group.size), []
    with B.pause():
        for shard, rank in zip(shards, group.local_ranks, strict=True):
            flat = B.zeros((size,), B.dtype_of(shard), B.device_of(shard))
            B.write_(flat, *bounds[rank], shard)
            flats.append(flat)
    gather_flat_(flats, group)
    return flats


def gather_flat_(flats: Sequence[Tensor], group: Group) -> None:
    """Complete flat vectors into which every device has written its own shard."""
    B, size = backend_of(flats[0]), element_count(flats[0])
    with B.pause():
        if group.engine.point_to_point:
            rounds = _gather_rounds(size, group.size)
            exchange(flats, rounds, group, call="all-gather of shards")
        else:
            bounds = even_bounds(size, group.size)
            cuts = [bounds[rank] for rank in group.local_ranks]
            shards = [B.read(x, *cut) for x, cut in zip(flats, cuts, strict=True)]
            for flat, full in zip(flats, allgather(shards, group), strict=True):
                B.write_(flat, 0, size, full)
    notify("on_mark", "all-gather")


def scatter_flat(grads: Sequence[Tensor], group: Group) -> list[Tensor]:
    """Return each device's shard of the sum of flat vectors."""
    with backend_of(grads[0]).pause():
        shards = reduce_scatter(grads, group)
    notify("on_mark", "reduce-scatter")
    return shards


@lru_cache(maxsize=256)  # a training step repeats the same few
def _gather_rounds(size: int, ranks: int) -> list[Round]:
    return [*ring_allgather(np.arange(ranks), even_edges(size, ranks))]
