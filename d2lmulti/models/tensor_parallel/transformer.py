"""The transformer split over devices: heads, hidden units, and the vocabulary.

Each block computes f (`Copy`), its own heads or hidden units, and g (`Reduce`). At the
two ends a device holds the embeddings of some tokens and some columns of the logits, so
no device has all of them. Source: Shoeybi et al. (2019).
Chapter: *tensor_parallel*.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import cycle
from typing import Any

import numpy as np

from ...backends.protocol import Backend, Tensor
from ...checks import check_ids
from ...comm.cooperative import AllToAll, Apply, CommGenerator, Copy, Max, Reduce
from ...errors import InvalidInput
from ..experts import (
    choose_experts,
    experts_layer,
    fullest,
    route_tokens,
    run_experts,
    take_rows,
)
from ..networks import Model
from ..transformer import attention, check_context, feed_forward, heads_of, join_heads
from .layers import REPLICATED, RankInfo, ShardSpec, SplitLayer, SplitModel, named


def embedding_part(
    B: Backend, params: Sequence[Tensor], X: Tensor, part: RankInfo
) -> CommGenerator:
    """Embed X (n, t) into the stream (n * t, width).

    params: tokens (vocabulary / ranks, width), positions (context, width).
    """
    tokens, positions = params
    n, t = part.shape
    at = part.tokens.positions if part.tokens else np.arange(t)
    check_context(part.tokens.length if part.tokens else t, positions)
    H = embed_some(B, X, tokens, part).reshape((n * t, -1))
    (H,) = yield Reduce(H)
    return H + B.embedding(B.array(np.tile(at, n), B.device_of(tokens)), positions)


def block_part(
    B: Backend,
    params: Sequence[Tensor],
    X: Tensor,
    part: RankInfo,
    inner: Callable[..., Tensor],
) -> CommGenerator:
    """Add attention or an MLP to the residual stream X (tokens, width).

    params: gamma, beta, the inner function's shards, and the bias b, which is added
    once, after the sum. `inner` returns this device's partial sum.
    """
    gamma, beta, *shards, b = params
    n, t = part.shape
    H, X = yield Copy(B.layer_norm(X, gamma, beta), keep=(X,))  # H: all n * t tokens
    H = yield from named("", inner(B, shards, H.reshape((n, t, -1)), part))
    (H,) = yield Reduce(H.reshape((n * t, -1)))
    return X + (H + b)


def attention_part(
    B: Backend, params: Sequence[Tensor], H: Tensor, part: RankInfo, head_size: int
) -> CommGenerator:
    """Compute some heads of H (n, t, width), over the tokens of all ranks."""
    if part.tokens is None:
        return attention(B, params, H, head_size)
    W_qkv, b_qkv, W_out = params
    heads = B.concat(list(heads_of(B, H, W_qkv, b_qkv, head_size)))
    (mixed,) = yield Apply(heads, axis="sequence", function=part.tokens.attend)
    return join_heads(B, mixed, W_out, H.shape[0])


def experts_part(
    B: Backend, params: Sequence[Tensor], X: Tensor, part: RankInfo
) -> CommGenerator:
    """Add the outputs of the experts, on all ranks, to the stream X (tokens, width).

    params as of `experts_layer`: this rank's experts along `expert`, with its hidden
    units along `tensor`. Ranks along `expert` have different tokens. The capacity is
    the largest load of an expert, so that no token is dropped.
    """
    gamma, beta, router, W1, W2 = params
    H = B.layer_norm(X, gamma, beta)
    choice = choose_experts(B, H, router)
    (H, X, gate) = yield Copy(H, keep=(X, choice.gate))
    load = B.array(np.array([fullest(choice)], B.dtype_of(X)), B.device_of(X))
    (load, H, X, gate) = yield Max(load, keep=(H, X, gate), axis="expert")
    route = route_tokens(choice.expert, router.shape[1], int(B.numpy(load)[0]))
    sent = take_rows(B, H, route.token_of)
    (arrived, X, gate) = yield AllToAll(sent, keep=(X, gate), axis="expert")
    computed = run_experts(B, W1, W2, arrived, part.expert)
    (outs,) = yield AllToAll(computed, axis="expert")
    (out,) = yield Reduce(take_rows(B, outs, route.slot_of))
    return X + gate * out


def head_part(
    B: Backend, params: Sequence[Tensor], X: Tensor, part: RankInfo
) -> CommGenerator:
    """Compute some columns of the logits, (n * t, vocabulary / ranks).

    params: gamma, beta, W (width, vocabulary / ranks), b.
    """
    gamma, beta, W, b = params
    (H,) = yield Copy(B.layer_norm(X, gamma, beta))
    return H @ W + b


def embed_some(B: Backend, ids: Tensor, W: Tensor, part: RankInfo) -> Tensor:
    """Look up the ids (...) among this part's rows W (vocabulary / ranks, d).

    The result (..., d) is zero for all other ids: a partial sum of the embedding.
    """
    rows, inside = _own_ids(B, ids, W.shape[0], part)
    mask = inside[..., None].astype(B.dtype_of(W))
    device = B.device_of(W)
    return B.embedding(B.array(rows, device), W) * B.array(mask, device)


def split_cross_entropy(
    B: Backend, logits: Tensor, y: Tensor, part: RankInfo
) -> CommGenerator:
    """Compute the loss of every target, (n,), from logits (n, vocabulary / ranks).

    log(sum of exp) - logit of the target: the devices exchange a maximum, then two
    sums per target, instead of the logits themselves.
    """
    n, columns = logits.shape
    largest, logits = yield Max(B.max(logits, -1, True), keep=(logits,))  # (n, 1)
    logits = logits - largest  # at most 0, so that no exponential overflows
    target, inside = _own_ids(B, y.reshape((-1,)), columns, part)
    chosen = np.zeros((n, columns), B.dtype_of(logits))
    chosen[inside, target[inside]] = 1
    chosen = B.array(chosen, B.device_of(logits))
    sums = [B.sum(B.exp(logits), 1), B.sum(logits * chosen, 1)]
    (sums,) = yield Reduce(B.concat(sums))  # (2n,)
    return B.log(sums[:n]) - sums[n:]


def _own_ids(
    B: Backend, ids: Tensor, count: int, part: RankInfo
) -> tuple[np.ndarray, np.ndarray]:
    """Return ids relative to the first own one (0 if not own), and which are own."""
    all_ids = B.numpy(ids)
    check_ids(all_ids, count * part.ranks)
    rows = all_ids - part.rank * count
    inside = (rows >= 0) & (rows < count)
    return np.where(inside, rows, 0), inside


def split_transformer(model: Model) -> SplitModel:
    """Split a model of `make_transformer` by heads, hidden units, and characters.

    Raises `InvalidInput` for other models.
    """
    size = _head_size(model)
    experts = model.layers[2].forward is experts_layer
    heads = partial(ShardSpec, of="heads", unit=size)
    units = partial(ShardSpec, of="hidden units")
    characters = partial(ShardSpec, of="characters")
    copied = REPLICATED
    # W_qkv and b_qkv hold queries, keys, and values side by side.
    attention_specs = heads(1, blocks=3), heads(0, blocks=3), heads(0), copied
    mlp_specs = units(1), units(0), units(0), copied
    expert_specs = copied, units(2, experts=True), units(1, experts=True)

    attend = partial(block_part, inner=partial(attention_part, head_size=size))
    mlp = partial(
        block_part, inner=lambda B, shards, H, part: feed_forward(B, shards, H)
    )
    second = (expert_specs, experts_part) if experts else (mlp_specs, mlp)
    kinds = cycle([(attention_specs, attend), second])
    layers = (
        SplitLayer("embedding", (characters(0), copied), embedding_part),
        *(
            SplitLayer(layer.name, (copied, copied, *specs), forward)
            for layer, (specs, forward) in zip(model.layers[1:-1], kinds, strict=False)
        ),
        SplitLayer("head", (copied, copied, characters(1), characters(0)), head_part),
    )
    return SplitModel(model.name, model, layers, split_cross_entropy)


def _head_size(model: Model) -> int:
    """Return the size of a head, which the shapes of the parameters do not show."""
    forward = model.layers[1].forward if len(model.layers) > 2 else None
    inner: Any = getattr(forward, "keywords", {}).get("inner")
    if getattr(inner, "func", None) is not attention:
        raise InvalidInput(
            "expected a model of make_transformer to split by heads, got "
            f"{model.name}; write your own as a SplitModel"
        )
    return int(inner.keywords["head_size"])
