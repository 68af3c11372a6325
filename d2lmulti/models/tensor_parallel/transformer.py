"""The transformer split over devices: heads, hidden units, and the vocabulary.

Each block computes f, its own heads or hidden units, and g. With f = `Enter` and
g = `Leave` every device holds the whole stream between the blocks; with f = `Gather`
and g = `Scatter` it holds, and normalises, its part of the tokens: sequence parallelism
(Korthikanti et al., 2022), which moves as many bytes. Chapter: *layer_parallel*.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from ...backends.protocol import Backend, Tensor
from ...errors import InvalidInput
from ...plans.requests import CollectiveRequest, Enter, Gather, Leave, Scatter
from ...plans.rounds import even_bounds
from ..model import Model
from ..transformer import attention, attention_layer, feed_forward
from .split import OF_SOME_TOKENS, WHOLE, Cut, RankInfo, SplitLayer, SplitModel, Talk
from .vocabulary import embed_some, split_cross_entropy


def embedding_part(
    B: Backend,
    params: Sequence[Tensor],
    X: Tensor,
    part: RankInfo,
    g: type[CollectiveRequest],
) -> Talk:
    """Embed X (n, t) into the stream (n * t, width), or into this part's rows of it.

    params: tokens (vocabulary / ranks, width), positions (context, width).
    """
    tokens, positions = params
    n, t = part.shape
    H = embed_some(B, X, tokens, part).reshape((n * t, -1))
    (H,) = yield g(H)
    first, last = 0, n * t
    if g is Scatter:
        first, last = even_bounds(n * t, part.ranks)[part.rank]
    places = B.array(np.arange(first, last) % t, B.device_of(tokens))
    return H + B.embedding(places, positions)


def block_part(
    B: Backend, params: Sequence[Tensor], X: Tensor, part: RankInfo,
    inner: Callable[..., Tensor],
    f: type[CollectiveRequest], g: type[CollectiveRequest],
) -> Talk:  # fmt: skip
    """Add this block to the stream X (tokens, width): attention or MLP, all devices'.

    params: gamma, beta, the inner function's shards, and the bias b, which only one of
    all the parts may add: after the sum.
    """
    gamma, beta, *shards, b = params
    n, t = part.shape
    H, X = yield f(B.layer_norm(X, gamma, beta), keep=(X,))  # H: all n * t tokens
    H = inner(B, shards, H.reshape((n, t, -1)))  # a summand of the whole
    (H,) = yield g(H.reshape((n * t, -1)))
    return X + (H + b)


def head_part(
    B: Backend,
    params: Sequence[Tensor],
    X: Tensor,
    part: RankInfo,
    f: type[CollectiveRequest],
) -> Talk:
    """Turn the stream into some columns of the logits, (n * t, vocabulary / ranks).

    params: gamma, beta, W (width, vocabulary / ranks), b.
    """
    gamma, beta, W, b = params
    (H,) = yield f(B.layer_norm(X, gamma, beta))
    return H @ W + b


def split_transformer(model: Model, sequence: bool = False) -> SplitModel:
    """Split a model of `make_transformer` by heads, hidden units and characters.

    With `sequence`, the stream between the blocks is split by tokens; the number of
    devices must divide n * t. Raises `InvalidInput` for any other model.
    """
    size = _head_size(model)
    blocks = (len(model.layers) - 2) // 2
    f, g = (Gather, Scatter) if sequence else (Enter, Leave)
    stream = OF_SOME_TOKENS if sequence else WHOLE
    attention_cuts = (
        Cut(1, "heads", blocks=3, unit=size),  # queries, keys and values
        Cut(0, "heads", blocks=3, unit=size),
        Cut(0, "heads", unit=size),
    )
    mlp_cuts = (Cut(1, "hidden units"), Cut(0, "hidden units"), Cut(0, "hidden units"))
    middle = [
        SplitLayer(
            f"{kind} {i}",
            (stream, stream, *cuts, stream),
            partial(block_part, inner=inner, f=f, g=g),
        )
        for i in range(1, blocks + 1)
        for kind, cuts, inner in (
            ("attention", attention_cuts, partial(attention, head_size=size)),
            ("MLP", mlp_cuts, feed_forward),
        )
    ]
    columns = (Cut(1, "characters"), Cut(0, "characters"))
    layers = (
        SplitLayer(
            "embedding", (Cut(0, "characters"), stream), partial(embedding_part, g=g)
        ),
        *middle,
        SplitLayer("head", (stream, stream, *columns), partial(head_part, f=f)),
    )
    return SplitModel(model.name, model, layers, split_cross_entropy)


def _head_size(model: Model) -> int:
    """Read the one size that the shapes of the parameters do not show."""
    forward = model.layers[1].forward if len(model.layers) > 2 else None
    if not isinstance(forward, partial) or forward.func is not attention_layer:
        raise InvalidInput(
            "expected a model of make_transformer to split by heads, got "
            f"{model.name}; split a network of your own with models.split_layers"
        )
    return int(forward.keywords["head_size"])
