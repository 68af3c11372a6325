"""A small character-level transformer: attention, MLP, and layer norm, from scratch.

The residual stream between the layers is (examples, length, width). Sizes that differ
on shards (heads, hidden units) are read from the shapes of the parameters, so the same
functions also run on one device's shard. Chapter: *tensor_parallel*.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from ..backends.protocol import Backend, Tensor
from ..checks import check_count
from ..errors import InvalidInput
from .experts import experts_layer
from .networks import MAX_WIDTH, Layer, Model, run_layers


def embed(B: Backend, params: Sequence[Tensor], X: Tensor) -> Tensor:
    """Look up every token and add its position: X (n, t) becomes (n, t, width).

    params: tokens (vocabulary, width), positions (context, width), of which t are used.
    Raises `InvalidInput` for more tokens than positions.
    """
    tokens, positions = params
    check_context(X.shape[1], positions)
    return B.embedding(X, tokens) + positions[: X.shape[1]]


def check_context(length: int, positions: Tensor) -> None:
    """Raise `InvalidInput` for a sequence longer than the table of positions."""
    if length > positions.shape[0]:
        raise InvalidInput(
            f"expected at most {positions.shape[0]} tokens per sequence, got {length}; "
            "cut shorter sequences or make the model with a longer context"
        )


def heads_of(
    B: Backend, H: Tensor, W: Tensor, b: Tensor, head_size: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Project H (n, t, width) to queries, keys, values (n * heads, t, head_size).

    W (width, 3 * heads * head_size) holds all queries, then all keys, then all values.
    """
    n, t, width = H.shape
    heads = W.shape[1] // (3 * head_size)
    P = (H.reshape((n * t, width)) @ W + b).reshape((n, t, 3, heads, head_size))
    P = B.transpose(P, (2, 0, 3, 1, 4)).reshape((3 * n * heads, t, head_size))
    m = n * heads
    return P[:m], P[m : 2 * m], P[2 * m :]


def attend(B: Backend, Q: Tensor, K: Tensor, V: Tensor) -> Tensor:
    """Compute causal attention, softmax(Q K^T / sqrt(head_size)) V.

    Q, K, V and the result are (n * heads, t, head_size). Source: Vaswani et al. (2017).
    """
    t, head_size = Q.shape[1:]
    scores = Q @ B.transpose(K, (0, 2, 1)) / math.sqrt(head_size)  # (n * heads, t, t)
    future = np.triu(np.full((t, t), -1e9, "float32"), 1)  # exp(-1e9) is 0
    mask = B.cast(B.array(future, B.device_of(Q)), B.dtype_of(Q))
    return B.softmax(scores + mask) @ V


def join_heads(B: Backend, mixed: Tensor, W_out: Tensor, n: int) -> Tensor:
    """Project (n * heads, t, head_size) back to the residual stream, (n, t, width)."""
    heads, (t, size) = mixed.shape[0] // n, mixed.shape[1:]
    mixed = B.transpose(mixed.reshape((n, heads, t, size)), (0, 2, 1, 3))
    return (mixed.reshape((n * t, heads * size)) @ W_out).reshape((n, t, -1))


def attention(
    B: Backend, params: Sequence[Tensor], H: Tensor, head_size: int
) -> Tensor:
    """Compute the block's attention of H (n, t, width), without bias and residual.

    params: W_qkv (width, 3 * heads * head_size), b_qkv, W_out (heads * head_size,
    width). A shard of whole heads computes a partial sum.
    """
    W_qkv, b_qkv, W_out = params
    mixed = attend(B, *heads_of(B, H, W_qkv, b_qkv, head_size))
    return join_heads(B, mixed, W_out, H.shape[0])


def feed_forward(B: Backend, params: Sequence[Tensor], H: Tensor) -> Tensor:
    """Compute the block's MLP of H (n, t, width), without bias and residual.

    params: W1 (width, hidden), b1, W2 (hidden, width). A shard of hidden units computes
    a partial sum.
    """
    W1, b1, W2 = params
    n, t, width = H.shape
    return (B.gelu(H.reshape((n * t, width)) @ W1 + b1) @ W2).reshape((n, t, width))


def block(
    B: Backend, params: Sequence[Tensor], X: Tensor, inner: Callable[..., Tensor]
) -> Tensor:
    """Add attention or an MLP to the residual stream: X + inner(layer_norm(X)) + b.

    params: gamma, beta, those of the inner function, b.
    """
    gamma, beta, *inner_params, b = params
    return X + (inner(B, inner_params, B.layer_norm(X, gamma, beta)) + b)


def head(B: Backend, params: Sequence[Tensor], X: Tensor) -> Tensor:
    """Compute logits (n * t, vocabulary) from X (n, t, width).

    params: gamma, beta, W (width, vocabulary), b.
    """
    gamma, beta, W, b = params
    n, t, width = X.shape
    return B.layer_norm(X, gamma, beta).reshape((n * t, width)) @ W + b


def initial_transformer(
    rng: np.random.Generator,
    vocabulary: int,
    context: int,
    width: int,
    blocks: int,
    experts: int = 0,
) -> list[np.ndarray]:
    """Sample the parameters: weights of variance 1 / fan_in, norms 1, biases 0.

    The projections into the residual stream are scaled by 1 / sqrt(2 * blocks), so that
    it does not grow with depth (Radford et al., 2019); the head is smaller still, so
    that training begins with a loss near log(vocabulary).
    """

    def weight(*shape: int, shrink: float = 1.0) -> np.ndarray:
        return rng.normal(0.0, shrink / math.sqrt(shape[-2]), shape)

    norm = [np.ones(width), np.zeros(width)]
    shrink = 1 / math.sqrt(2 * blocks)
    params = [rng.normal(0.0, 1.0, (vocabulary, width))]
    params += [rng.normal(0.0, 0.3, (context, width))]
    for _ in range(blocks):
        params += [*norm, weight(width, 3 * width), np.zeros(3 * width)]
        params += [weight(width, width, shrink=shrink), np.zeros(width)]
        if experts:
            params += [*norm, weight(width, experts), weight(experts, width, 4 * width)]
            params += [weight(experts, 4 * width, width, shrink=shrink)]
            continue
        params += [*norm, weight(width, 4 * width), np.zeros(4 * width)]
        params += [weight(4 * width, width, shrink=shrink), np.zeros(width)]
    params += [*norm, weight(width, vocabulary, shrink=0.3), np.zeros(vocabulary)]
    return [p.copy() for p in params]  # the norms appear in several layers


def make_transformer(
    name: str,
    vocabulary: int = 36,
    context: int = 32,
    width: int = 48,
    heads: int = 12,
    blocks: int = 2,
    experts: int = 0,
) -> Model:
    """Make a transformer of `blocks` blocks: embedding, (attention, MLP)..., head.

    With `experts`, a mixture of that many small MLPs replaces each MLP, and a token
    uses one of them (see `experts_layer`). Raises `InvalidInput` for heads that do not
    divide the width.
    """
    sizes = {"vocabulary": vocabulary, "context": context, "width": width}
    for what, size in {**sizes, "heads": heads}.items():
        check_count(what, size, max=MAX_WIDTH)
    check_count("blocks", blocks, max=10**4)
    experts = check_count("experts", experts, min=0, max=MAX_WIDTH)
    if width % heads:
        raise InvalidInput(
            f"expected heads that divide the width of {width}, got {heads}; use "
            f"{max(h for h in range(1, max(2, heads)) if width % h == 0)} heads"
        )
    attend_block = partial(block, inner=partial(attention, head_size=width // heads))
    mlp_block = partial(block, inner=feed_forward)
    middle = []
    for i in range(1, blocks + 1):
        middle.append(Layer(f"attention {i}", 6, attend_block))
        if experts:
            middle.append(Layer(f"experts {i}", 5, experts_layer))
        else:
            middle.append(Layer(f"MLP {i}", 6, mlp_block))
    layers = (Layer("embedding", 2, embed), *middle, Layer("head", 4, head))

    def forward(B: Backend, params: Sequence[Tensor], X: Tensor) -> Tensor:
        return run_layers(B, layers, params, X)

    initial = partial(
        initial_transformer,
        vocabulary=vocabulary,
        context=context,
        width=width,
        blocks=blocks,
        experts=experts,
    )
    return Model(name, initial, forward, forward, layers=layers, vocabulary=vocabulary)


TRANSFORMER = make_transformer("transformer")
SWITCH_TRANSFORMER = make_transformer("switch_transformer", experts=4)
