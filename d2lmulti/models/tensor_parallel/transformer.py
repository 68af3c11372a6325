"""The transformer split over devices: heads, hidden units, and the vocabulary.

Each block computes f, its own heads or hidden units, and g. With f = `Copy` and
g = `Reduce` every device holds the whole stream between the blocks; with f = `Gather`
and g = `Scatter` it holds, and normalises, its part of the tokens: sequence parallelism
(Korthikanti et al., 2022), which moves as many bytes. Chapter: *layer_parallel*.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import cycle
from typing import Any

import numpy as np

from ...backends.protocol import Backend, Tensor
from ...errors import InvalidInput
from ...plans.requests import (
    AllToAll,
    Apply,
    CollectiveRequest,
    Copy,
    Gather,
    Max,
    Reduce,
    Scatter,
)
from ...plans.rounds import even_bounds
from ..experts import (
    choose_experts,
    experts_layer,
    fullest,
    route_tokens,
    run_experts,
    take_rows,
)
from ..model import Model
from ..transformer import (
    attention,
    check_context,
    feed_forward,
    heads_of,
    join_heads,
)
from .split import (
    PARTIAL_GRADS,
    REPLICATED,
    RankInfo,
    ShardSpec,
    SplitLayer,
    SplitModel,
    Talk,
    named,
)
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
    at = part.tokens.positions if part.tokens else np.arange(t)
    check_context(part.tokens.length if part.tokens else t, positions)
    H = embed_some(B, X, tokens, part).reshape((n * t, -1))
    (H,) = yield g(H)
    first, last = 0, n * t
    if g is Scatter:
        first, last = even_bounds(n * t, part.ranks)[part.rank]
    places = B.array(at[np.arange(first, last) % t], B.device_of(tokens))
    return H + B.embedding(places, positions)


def block_part(
    B: Backend, params: Sequence[Tensor], X: Tensor, part: RankInfo,
    inner: Callable[..., Tensor],
    f: type[CollectiveRequest], g: type[CollectiveRequest],
) -> Talk:  # fmt: skip
    """Add this block to the stream X (tokens, width): attention or MLP, all devices'.

    params: gamma, beta, the inner function's shards, and the bias b, which only one of
    all the parts may add: after the sum. `inner` gives a summand of the whole.
    """
    gamma, beta, *shards, b = params
    n, t = part.shape
    H, X = yield f(B.layer_norm(X, gamma, beta), keep=(X,))  # H: all n * t tokens
    H = yield from named("", inner(B, shards, H.reshape((n, t, -1)), part))
    (H,) = yield g(H.reshape((n * t, -1)))
    return X + (H + b)


def attention_part(
    B: Backend, params: Sequence[Tensor], H: Tensor, part: RankInfo, head_size: int
) -> Talk:
    """Attend, with some heads of H (n, t, width), to the tokens of all ranks."""
    if part.tokens is None:
        return attention(B, params, H, head_size)
    W_qkv, b_qkv, W_out = params
    heads = B.concat(list(heads_of(B, H, W_qkv, b_qkv, head_size)))
    (mixed,) = yield Apply(heads, axis="sequence", function=part.tokens.attend)
    return join_heads(B, mixed, W_out, H.shape[0])


def experts_part(
    B: Backend, params: Sequence[Tensor], X: Tensor, part: RankInfo
) -> Talk:
    """Add to the stream X (tokens, width) what its experts make of it, all ranks'.

    params as of `experts_layer`, with the experts of this place along `expert`, and
    their hidden units of this place along `tensor`. The ranks along `expert` have other
    tokens; the room of an expert is what the fullest needs, so that none is dropped.
    """
    gamma, beta, router, W1, W2 = params
    H = B.layer_norm(X, gamma, beta)
    choice = choose_experts(B, H, router)
    (H, X, gate) = yield Copy(H, keep=(X, choice.gate))
    room = B.array(np.array([fullest(choice)], B.dtype_of(X)), B.device_of(X))
    (room, H, X, gate) = yield Max(room, keep=(H, X, gate), axis="expert")
    route = route_tokens(choice.expert, router.shape[1], int(B.numpy(room)[0]))
    sent = take_rows(B, H, route.token_of)
    (here, X, gate) = yield AllToAll(sent, keep=(X, gate), axis="expert")
    (home,) = yield AllToAll(run_experts(B, W1, W2, here, part.expert), axis="expert")
    (out,) = yield Reduce(take_rows(B, home, route.slot_of))
    return X + gate * out


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
    devices must divide n * t. Raises `InvalidInput` for any other model, and for
    `sequence` with experts.
    """
    size = _head_size(model)
    experts = model.layers[2].forward is experts_layer
    if experts and sequence:
        raise InvalidInput(
            f"expected a transformer without experts to split by tokens along tensor, "
            f"got {model.name}; split the tokens along the axis sequence of a mesh"
        )
    f, g = (Gather, Scatter) if sequence else (Copy, Reduce)
    stream = PARTIAL_GRADS if sequence else REPLICATED
    attention_cuts = (
        ShardSpec(1, "heads", blocks=3, unit=size),  # queries, keys and values
        ShardSpec(0, "heads", blocks=3, unit=size),
        ShardSpec(0, "heads", unit=size),
    )
    units = (
        ShardSpec(1, "hidden units"),
        ShardSpec(0, "hidden units"),
        ShardSpec(0, "hidden units"),
    )
    expert_cuts = (
        REPLICATED,
        *(ShardSpec(dim, "hidden units", experts=True) for dim in (2, 1)),
    )
    block = partial(block_part, f=f, g=g)
    attends = partial(block, inner=partial(attention_part, head_size=size))
    mixes = partial(block, inner=lambda B, shards, H, part: feed_forward(B, shards, H))
    # What follows the norm, layer by layer in turn: the cuts and the parts.
    kinds = cycle([
        ((*attention_cuts, stream), attends),
        (expert_cuts, experts_part) if experts else ((*units, stream), mixes),
    ])  # fmt: skip
    middle = [
        SplitLayer(layer.name, (stream, stream, *cuts), forward)
        for layer, (cuts, forward) in zip(model.layers[1:-1], kinds, strict=False)
    ]
    columns = (ShardSpec(1, "characters"), ShardSpec(0, "characters"))
    layers = (
        SplitLayer(
            "embedding",
            (ShardSpec(0, "characters"), stream),
            partial(embedding_part, g=g),
        ),
        *middle,
        SplitLayer("head", (stream, stream, *columns), partial(head_part, f=f)),
    )
    return SplitModel(model.name, model, layers, split_cross_entropy)


def _head_size(model: Model) -> int:
    """Read the one size that the shapes of the parameters do not show."""
    forward = model.layers[1].forward if len(model.layers) > 2 else None
    inner: Any = getattr(forward, "keywords", {}).get("inner")
    if getattr(inner, "func", None) is not attention:
        raise InvalidInput(
            "expected a model of make_transformer to split by heads, got "
            f"{model.name}; write your own as a SplitModel"
        )
    return int(inner.keywords["head_size"])
