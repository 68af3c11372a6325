"""Adapters from the tests of CS336's second assignment to `d2lmulti`.

Stanford's *Language Modeling from Scratch* hands its learners tests and a file of
empty functions, `tests/adapters.py`; this file stands in its place. A learner's module
stays a module here, so what is used of the library is what lies under `shard_params`
and `train_shards`.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from d2lmulti import allgather, allreduce, broadcast, reduce_scatter
from d2lmulti.comm.group import Group
from d2lmulti.parallel.buckets import GradientBuckets
from d2lmulti.plans.rounds import even_bounds
from d2lmulti.processes.process_group import start, started


def _group() -> Group:
    """The process group that the test has made, adopted once."""
    return started() or start("torch")


def _share(module: nn.Module) -> None:
    """Give every rank the parameters and buffers of rank 0."""
    for x in module.state_dict().values():
        broadcast([x], 0, _group())


# -- data parallelism ----------------------------------------------------------------


class DDP(nn.Module):
    """A module whose gradients are averaged, bucket by bucket, on the way back."""

    def __init__(self, module: nn.Module, bucket_bytes: int) -> None:
        super().__init__()
        self.module, self.reducing = module, ExitStack()
        _share(module)
        params = list(module.parameters())
        self.buckets = GradientBuckets(
            [params], bucket_bytes, "native", _group(), "mean"
        )

    def forward(self, *inputs: Any, **options: Any) -> Any:
        """Compute, and from now on look out for gradients."""
        self.reducing.enter_context(self.buckets.reduce())
        return self.module(*inputs, **options)

    def finish(self) -> None:
        """Wait for the buckets that are still under way."""
        self.reducing.close()


def get_ddp(module: nn.Module) -> DDP:
    """Every parameter for itself: one is larger than a bucket of one byte."""
    return DDP(module, bucket_bytes=1)


def ddp_on_after_backward(ddp_model: DDP, optimizer: Any) -> None:
    ddp_model.finish()


def get_ddp_bucketed(module: nn.Module, bucket_size_mb: float) -> DDP:
    return DDP(module, int(bucket_size_mb * 2**20))


def ddp_bucketed_on_train_batch_start(ddp_model: DDP, optimizer: Any) -> None:
    """Nothing is left over from the step before."""


get_ddp_individual_parameters = get_ddp
ddp_individual_parameters_on_after_backward = ddp_on_after_backward
ddp_bucketed_on_after_backward = ddp_on_after_backward


# -- sharded optimizer: ZeRO 1 -------------------------------------------------------


class ShardedOptimizer(torch.optim.Optimizer):
    """Each rank updates its part of every parameter, and keeps the state of that.

    For optimizers that go number by number, as SGD, Adam and AdamW do.
    """

    def __init__(self, params: Any, cls: type, **options: Any) -> None:
        self.make, self.mine = cls, []  # of each group: (optimizer, its parts)
        super().__init__(params, options)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        options = {name: value for name, value in group.items() if name != "params"}
        parts = [nn.Parameter(_part(p)) for p in group["params"]]
        self.mine.append((self.make(parts, **options), parts))

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Update the own parts, then gather everybody's."""
        loss = None if closure is None else torch.enable_grad()(closure)()
        for group, (optimizer, parts) in zip(self.param_groups, self.mine, strict=True):
            pairs = [*zip(group["params"], parts, strict=True)]
            for p, part in pairs:
                part.grad = None if p.grad is None else _part(p.grad)
            optimizer.step()
            for p, part in pairs:
                if p.grad is not None:
                    p.copy_(allgather([part.data], _group())[0].view_as(p))
        return loss


def get_sharded_optimizer(
    params: Any, optimizer_cls: type, **kwargs: Any
) -> ShardedOptimizer:
    return ShardedOptimizer(params, optimizer_cls, **kwargs)


def _part(x: Tensor) -> Tensor:
    """Copy this rank's part of a tensor, as one row of numbers."""
    (rank,), size = _group().local_ranks, _group().size
    first, last = even_bounds(x.numel(), size)[rank]
    return x.detach().reshape(-1)[first:last].clone()


# -- fully sharded: ZeRO 3 -----------------------------------------------------------


class FSDP(nn.Module):
    """The weight of each linear layer and embedding is whole only while it is used.

    What the graph would keep of it for the way back is a note, and is gathered again
    when it is asked for. Other parameters are few numbers, and every rank has them.
    """

    def __init__(self, module: nn.Module, dtype: torch.dtype | None) -> None:
        super().__init__()
        _share(module)
        self.module, self.dtype = module, dtype
        self.shapes: dict[str, torch.Size] = {}
        names = {"Linear", "Embedding"}
        for name, layer in module.named_modules():
            if type(layer).__name__ in names:
                self._shard(f"{name}.weight", layer)

    def _shard(self, name: str, layer: nn.Module) -> None:
        trained, self.shapes[name] = layer.weight.requires_grad, layer.weight.shape
        part = nn.Parameter(_part(layer.weight), trained)
        gather = partial(self._gather, part, self.shapes[name])
        held, packing = layer._parameters, ExitStack()
        held["weight"] = part

        def before(layer: nn.Module, inputs: Any) -> None:
            whole = held["weight"] = gather().requires_grad_(trained)
            if trained:
                whole.register_post_accumulate_grad_hook(partial(self._scatter, part))
            packing.enter_context(
                torch.autograd.graph.saved_tensors_hooks(
                    partial(_to_note, whole.untyped_storage().data_ptr()),
                    partial(_from_note, gather),
                )
            )

        def after(layer: nn.Module, inputs: Any, output: Any) -> None:
            packing.close()
            whole, held["weight"] = held["weight"], part
            storage = whole.untyped_storage()
            if storage.resizable():  # not NumPy's, as with the shared-memory engine
                storage.resize_(0)  # the graph holds on to the tensor

        layer.register_forward_pre_hook(before)
        layer.register_forward_hook(after, always_call=True)

    def _gather(self, part: Tensor, shape: torch.Size) -> Tensor:
        sent = part.detach().to(self.dtype or part.dtype)
        return allgather([sent], _group())[0].view(shape)

    def _scatter(self, part: Tensor, whole: Tensor) -> None:
        """Give this rank its part of the mean gradient, in the dtype of its weights."""
        (grad,) = reduce_scatter([whole.grad.contiguous()], _group(), "mean")
        whole.grad = None
        grad = grad.to(part.dtype)
        part.grad = grad if part.grad is None else part.grad + grad

    def forward(self, *inputs: Any, **options: Any) -> Any:
        return self.module(*inputs, **options)

    def finish(self) -> None:
        """Average the gradients of what every rank has."""
        for name, p in self.module.named_parameters():
            if name not in self.shapes and p.grad is not None:
                allreduce([p.grad], "native", _group(), "mean")

    def whole(self) -> dict[str, Tensor]:
        """Gather the weights themselves, which are not in the dtype of computing."""
        return {
            name: allgather([p.detach()], _group())[0].view(self.shapes[name])
            if name in self.shapes else p.detach()
            for name, p in self.module.named_parameters()
        }  # fmt: skip


def _to_note(storage: int, x: Tensor) -> Any:
    """Keep of a view of the whole weight only how it is seen."""
    if x.untyped_storage().data_ptr() != storage:
        return x
    return x.shape, x.stride(), x.storage_offset()


def _from_note(gather: Any, note: Any) -> Tensor:
    return note if isinstance(note, Tensor) else gather().as_strided(*note)


def get_fsdp(module: nn.Module, compute_dtype: torch.dtype | None = None) -> FSDP:
    return FSDP(module, compute_dtype)


def fsdp_on_after_backward(fsdp_model: FSDP, optimizer: Any) -> None:
    fsdp_model.finish()


def fsdp_gather_full_params(fsdp_model: FSDP) -> dict[str, Tensor]:
    return fsdp_model.whole()
