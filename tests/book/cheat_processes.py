"""The cheat sheet's rows for tools with a process a device: called on each rank.

Each function takes {step: pieces of code}, carries them out in an order of its own, and
asserts after each what the step is there for. It returns the steps that it left out.
"""

from __future__ import annotations

import os
from typing import Any

from book.cheat_sheet import Sheet


def rank_here() -> int:
    """Return this process's rank, and tell it to the frameworks' own start."""
    rank = os.environ["D2LMULTI_RANK"]
    os.environ.update(RANK=rank, WORLD_SIZE="2")
    return int(rank)


def torch_rows(rows: dict[str, list[str]], folder: str) -> list[str]:
    import torch
    from torch import distributed as dist

    rank = rank_here()
    torch.manual_seed(rank)  # so that the replicas differ until they are copied
    do = Sheet(rows, torch=torch, data=range(5), x=torch.tensor([rank + 1.0]))
    do("Count the GPUs")
    do("Put a tensor on GPU 1")
    do("Start")
    assert (dist.get_rank(), dist.get_world_size()) == (rank, 2)
    do["net"] = torch.nn.Sequential(torch.nn.BatchNorm1d(3))
    do("Normalise over all devices")
    assert isinstance(do["net"][0], torch.nn.SyncBatchNorm)
    do["net"] = torch.nn.Linear(4, 1, bias=False)
    do("Copy the model")
    weight = do["net"].module.weight
    others = [torch.empty_like(weight) for _ in range(2)]
    dist.all_gather(others, weight.detach())
    assert torch.equal(*others)
    do("Share the batch")
    assert len(list(do["sampler"])) == 3  # 5, padded
    do("All-reduce by hand")
    assert do["x"].item() == 1 + 2
    do["X"] = torch.full((1, 4), rank + 1.0)
    do["loss_of"] = torch.sum
    do("Accumulate first")
    assert weight.grad[0, 0].item() == rank + 1  # its own, not yet the mean
    do["loss"] = do["net"](do["X"]).sum()
    do("Add up the gradients")
    assert weight.grad[0, 0].item() == (2 * 1 + 2 * 2) / 2
    save_once(do, folder, rank, "net.pt")
    dist.destroy_process_group()
    return sorted(do.rows)


def save_once(do: Sheet, folder: str, rank: int, name: str) -> None:
    """Save in a folder for each rank: only rank 0's may get a file."""
    mine = os.path.join(folder, str(rank))
    os.mkdir(mine)
    os.chdir(mine)
    do("Save once")
    assert os.listdir() == [name] * (rank == 0)


def paddle_rows(rows: dict[str, list[str]], folder: str) -> list[str]:
    import paddle
    from paddle import distributed as dist

    rank = rank_here()
    os.environ.update(
        PADDLE_TRAINER_ID=str(rank),
        PADDLE_TRAINERS_NUM="2",
        PADDLE_CURRENT_ENDPOINT=f"127.0.0.1:{rank}",
        PADDLE_MASTER="127.0.0.1:" + os.environ["MASTER_PORT"],
        PADDLE_DISTRI_BACKEND="gloo",
    )
    paddle.seed(rank)
    do = Sheet(rows, paddle=paddle, data=range(66), x=paddle.to_tensor([rank + 1.0]))
    do("Count the GPUs")
    do("Put a tensor on GPU 1")
    do("Start")
    assert (dist.get_rank(), dist.get_world_size()) == (rank, 2)
    do["net"] = paddle.nn.Sequential(paddle.nn.BatchNorm1D(3))
    do("Normalise over all devices")
    assert isinstance(do["net"][0], paddle.nn.SyncBatchNorm)
    do["net"] = paddle.nn.Linear(4, 1, bias_attr=False)
    do("Copy the model")
    (weight,) = do["net"].parameters()
    others: list[Any] = []
    dist.all_gather(others, weight.detach())
    assert (others[0] == others[1]).all()
    do("Share the batch")
    assert sum(map(len, do["sampler"])) == 33  # of 66
    do("All-reduce by hand")
    assert float(do["x"]) == 1 + 2
    do["X"] = paddle.full((1, 4), rank + 1.0)
    do["loss_of"] = paddle.sum
    do("Accumulate first")
    assert float(weight.grad[0, 0]) == rank + 1
    do["loss"] = do["net"](do["X"]).sum()
    do("Add up the gradients")
    assert float(weight.grad[0, 0]) == (2 * 1 + 2 * 2) / 2
    save_once(do, folder, rank, "net.pdparams")
    dist.destroy_process_group()
    return sorted(do.rows)


def horovod_rows(rows: dict[str, list[str]], folder: str) -> list[str]:
    import horovod.torch as hvd
    import torch

    rank = rank_here()
    torch.manual_seed(rank)
    net = torch.nn.Linear(4, 1, bias=False)
    do = Sheet(
        rows, torch=torch, hvd=hvd, net=net, data=range(5), x=torch.tensor([rank + 1.0])
    )
    do("Count the GPUs")
    assert do.rows.pop("Put a tensor on GPU 1")  # cannot be done without one
    assert callable(torch.cuda.set_device)
    do("Start")
    assert (hvd.rank(), hvd.size()) == (rank, 2)
    do("Copy the model")
    mine, other = hvd.allgather(net.weight.detach())
    assert torch.equal(mine, other)
    do("Share the batch")
    assert len(do["sampler"]) == 3
    do("All-reduce by hand")
    assert do["x"].item() == 1 + 2
    do("Normalise over all devices")
    assert isinstance(do["norm"], torch.nn.modules.batchnorm._BatchNorm)
    X = torch.full((1, 4), rank + 1.0)  # the gradient of the sum of net(X)
    do["sgd"] = torch.optim.SGD(net.parameters(), lr=1.0)
    wrap, step = do.rows.pop("Add up the gradients")
    exec(wrap, do.names)
    before = net.weight.detach().clone()
    net(X).sum().backward()
    exec(step, do.names)
    assert torch.allclose(before - net.weight, torch.tensor((1 + 2) / 2))
    do["net"] = net = torch.nn.Linear(4, 1, bias=False)
    do["sgd"] = torch.optim.SGD(net.parameters(), lr=1.0)
    do("Accumulate first")
    before = net.weight.detach().clone()
    for _ in range(2):
        net(X).sum().backward()
    do["sgd"].step()
    assert torch.allclose(before - net.weight, torch.tensor(2 * (1 + 2) / 2))
    save_once(do, folder, rank, "net.pt")
    return sorted(do.rows)
