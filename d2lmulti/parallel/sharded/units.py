"""Cut a network into units: what is gathered together, a layer as one flat vector."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from ...backends import backend_of
from ...backends.protocol import Tensor
from ...errors import InvalidInput
from ...models.model import Layer, Model


class Unit(NamedTuple):
    """What is gathered together: one layer's parameters, as one flat vector."""

    layers: tuple[Layer, ...]  # one, and those beside it that have no parameters
    shapes: tuple[tuple[int, ...], ...]  # of the parameters

    @property
    def name(self) -> str:
        """The name of the layer."""
        return next(layer.name for layer in self.layers if layer.params)

    @property
    def size(self) -> int:
        """How many numbers the flat vector has."""
        return sum(map(math.prod, self.shapes))

    def unflatten(self, flat: Tensor) -> list[Tensor]:
        """Read the parameters off the flat vector."""
        params, first = [], 0
        for shape in self.shapes:
            last = first + math.prod(shape)
            params.append(flat[first:last].reshape(shape))
            first = last
        return params


def cut_units(model: Model, params: Sequence[Tensor]) -> list[Unit]:
    """Give one unit for each layer that has parameters."""
    if not model.layers:
        raise InvalidInput(
            f"cannot shard {model.name!r} layer by layer: it is not written as a "
            "sequence of layers (batch normalisation that talks in mid-forward cannot "
            "be); use a model with `layers`, such as lenet, or the strategy data"
        )
    if len(params) != sum(layer.params for layer in model.layers):
        raise InvalidInput(
            f"expected the {sum(layer.params for layer in model.layers)} parameters of "
            f"{model.name!r}, got {len(params)}; take them from model.initial(rng)"
        )
    dtypes = {backend_of(p).dtype_of(p) for p in params}
    if len(dtypes) > 1:
        raise InvalidInput(
            f"expected parameters of one dtype, got {' and '.join(sorted(dtypes))}; a "
            "layer's become one vector, so convert them to one dtype"
        )
    shapes = iter([tuple(int(extent) for extent in p.shape) for p in params])
    units: list[Unit] = []
    for layer in model.layers:
        mine = tuple(next(shapes) for _ in range(layer.params))
        if units and not (mine and units[-1].shapes):  # one of both has none
            layers, before = units.pop()
            units.append(Unit((*layers, layer), before + mine))
        else:
            units.append(Unit((layer,), mine))
    return units
