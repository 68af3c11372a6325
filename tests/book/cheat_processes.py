"""The cheat sheet's rows for tools with a process a device: called on each rank.

Each function takes {step: pieces of code}, carries them out in an order of its own, and
asserts after each what the step is there for. It returns the steps that it left out.
"""

from __future__ import annotations

import datetime
import os
from typing import Any

import pytest
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
    choose, move = do.rows.pop("Choose the GPU")  # needs a GPU
    assert choose.startswith("torch.cuda.set_device(") and "to(" in move
    do("Start")
    assert (dist.get_rank(), dist.get_world_size()) == (rank, 2)
    do["net"] = torch.nn.Sequential(torch.nn.BatchNorm1d(3))
    do("Normalize over all devices")
    assert isinstance(do["net"][0], torch.nn.SyncBatchNorm)
    do["net"] = torch.nn.Linear(4, 1, bias=False)
    do("Copy the model")
    weight = do["net"].module.weight
    others = [torch.empty_like(weight) for _ in range(2)]
    dist.all_gather(others, weight.detach())
    assert torch.equal(*others)
    do("Shard the batch")
    assert len(list(do["sampler"])) == 3  # 5, padded
    new_order(do)
    do("All-reduce by hand")
    assert do["x"].item() == 1 + 2
    do["X"] = torch.full((1, 4), rank + 1.0)
    do["loss_of"] = torch.sum
    do("Accumulate gradients")
    assert weight.grad[0, 0].item() == rank + 1  # its own, not yet the mean
    do["loss"] = do["net"](do["X"]).sum()
    do("Sum the gradients")
    assert weight.grad[0, 0].item() == (2 * 1 + 2 * 2) / 2
    do("Clip the gradients")
    assert weight.grad.norm().item() == pytest.approx(1.0)
    save_once(do, folder, rank, "net.pt")
    saved = weight.detach().clone()
    torch.nn.init.zeros_(weight)
    dist.barrier()
    os.chdir(os.path.join(folder, "0"))  # the disk that all see
    do("Resume")
    assert torch.equal(weight, saved)
    do["net"], do["X"] = torch.nn.Linear(4, 1, bias=False), torch.ones(1, 4)
    do("Shard the optimizer")
    do["net"](do["X"]).sum().backward()
    do["sgd"].step()
    states = torch.tensor(len(do["sgd"].optim.state))
    dist.all_reduce(states)
    assert states.item() == 1  # one weight, whose velocity one rank has
    do["sgd"] = torch.optim.SGD(do["net"].parameters(), lr=0.1)
    do("Warm up the learning rate")
    assert rates_of(do) == pytest.approx([0.04, 0.06, 0.08, 0.1, 0.1])
    do["x"] = torch.tensor([10.0 * rank, 10.0 * rank + 1])
    do["parts"], do["y"] = [torch.empty(2), torch.empty(2)], torch.empty(2)
    do("Gather from all ranks")
    assert [part.tolist() for part in do["parts"]] == [[0, 1], [10, 11]]
    do("Send each rank its part")
    assert do["y"].tolist() == [rank, 10 + rank]
    do("Compute in 16 bits")
    assert do["y"].dtype == torch.bfloat16
    do["datetime"] = datetime
    group, roll_call = do.rows.pop("Find who is missing")
    exec(group, do.names)
    dist.barrier()  # rank 0 may still be connecting to rank 1
    if rank == 0:  # and rank 1 does not come
        with pytest.raises(RuntimeError, match="Rank 1 failed to pass"):
            exec(roll_call.replace("seconds=30", "milliseconds=50"), do.names)
    dist.barrier()  # rank 1 is absent from the roll call, but alive
    return sorted(do.rows)


def rates_of(do: Sheet) -> list[float]:
    """The rates of the steps after the first."""
    rates = []
    for _ in range(5):
        rates += [group["lr"] for group in do["sgd"].param_groups]
        do["sgd"].step()
        do["warm_up"].step()
    return rates


def new_order(do: Sheet) -> None:
    """Begin another epoch: the sampler gives another order."""
    before = list(do["sampler"])
    do["epoch"] = 7
    do("Shuffle every epoch")
    assert list(do["sampler"]) != before


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
    assert do.rows.pop("Choose the GPU") == ["init_parallel_env()"]
    do("Start")
    assert (dist.get_rank(), dist.get_world_size()) == (rank, 2)
    do["net"] = paddle.nn.Sequential(paddle.nn.BatchNorm1D(3))
    do("Normalize over all devices")
    assert isinstance(do["net"][0], paddle.nn.SyncBatchNorm)
    do["net"] = paddle.nn.Linear(4, 1, bias_attr=False)
    do("Copy the model")
    (weight,) = do["net"].parameters()
    others: list[Any] = []
    dist.all_gather(others, weight.detach())
    assert (others[0] == others[1]).all()
    do("Shard the batch")
    assert sum(map(len, do["sampler"])) == 33  # of 66
    new_order(do)
    do("All-reduce by hand")
    assert float(do["x"]) == 1 + 2
    do["X"] = paddle.full((1, 4), rank + 1.0)
    do["loss_of"] = paddle.sum
    do("Accumulate gradients")
    assert float(weight.grad[0, 0]) == rank + 1
    do["loss"] = do["net"](do["X"]).sum()
    do("Sum the gradients")
    assert float(weight.grad[0, 0]) == (2 * 1 + 2 * 2) / 2
    do("Clip the gradients")
    assert isinstance(do["clip"], paddle.nn.ClipGradByGlobalNorm)
    save_once(do, folder, rank, "net.pdparams")
    saved = weight.numpy()
    weight.set_value(0 * saved)
    dist.barrier()
    os.chdir(os.path.join(folder, "0"))  # the disk that all see
    do("Resume")
    assert (weight.numpy() == saved).all()
    do("Warm up the learning rate")
    rates = []
    for _ in range(5):  # the first step is taken
        rates.append(do["rate"]())
        do["rate"].step()
    assert rates == pytest.approx([0.036, 0.052, 0.068, 0.084, 0.1])
    do["x"] = paddle.to_tensor([10.0 * rank, 10.0 * rank + 1])
    do["parts"], do["y"] = [], paddle.empty_like(do["x"])
    do("Gather from all ranks")
    assert [part.tolist() for part in do["parts"]] == [[0, 1], [10, 11]]
    do("Compute in 16 bits")  # does nothing on a CPU
    do["sgd"] = paddle.optimizer.SGD(parameters=do["net"].parameters())
    for step, words in [
        ("Shard the optimizer", "only support gpu"),
        ("Send each rank its part", "GLOO does not support all_to_all"),
    ]:
        with pytest.raises((AssertionError, NotImplementedError), match=words):
            do(step)
    assert do.rows.pop("Find who is missing") == []  # a variable
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
    assert do.rows.pop("Choose the GPU")  # cannot be done without one
    assert callable(torch.cuda.set_device)
    do("Start")
    assert (hvd.rank(), hvd.size()) == (rank, 2)
    do("Copy the model")
    mine, other = hvd.allgather(net.weight.detach())
    assert torch.equal(mine, other)
    do("Shard the batch")
    assert len(do["sampler"]) == 3
    new_order(do)
    do("All-reduce by hand")
    assert do["x"].item() == 1 + 2
    do("Normalize over all devices")
    assert isinstance(do["norm"], torch.nn.modules.batchnorm._BatchNorm)
    X = torch.full((1, 4), rank + 1.0)  # the gradient of the sum of net(X)
    do["sgd"] = torch.optim.SGD(net.parameters(), lr=1.0)
    wrap, step = do.rows.pop("Sum the gradients")
    exec(wrap, do.names)
    before = net.weight.detach().clone()
    net(X).sum().backward()
    exec(step, do.names)
    assert torch.allclose(before - net.weight, torch.tensor((1 + 2) / 2))
    do["net"] = net = torch.nn.Linear(4, 1, bias=False)
    do["sgd"] = torch.optim.SGD(net.parameters(), lr=1.0)
    do("Accumulate gradients")
    before = net.weight.detach().clone()
    for _ in range(2):
        net(X).sum().backward()
    do["sgd"].step()
    assert torch.allclose(before - net.weight, torch.tensor(2 * (1 + 2) / 2))
    save_once(do, folder, rank, "net.pt")
    saved = net.weight.detach().clone()
    torch.nn.init.zeros_(net.weight)
    do("Resume")
    mine, other = hvd.allgather(net.weight.detach())  # those of rank 0
    assert torch.equal(mine, other) and torch.equal(mine, hvd.broadcast(saved, 0)[0])
    do["net"] = net = torch.nn.Linear(4, 1, bias=False)
    do["sgd"] = torch.optim.SGD(net.parameters(), lr=1.0)
    exec(wrap, do.names)
    before = net.weight.detach().clone()
    net(X).sum().backward()
    do("Clip the gradients")
    assert (before - net.weight).norm().item() == pytest.approx(1.0)
    do["x"] = torch.tensor([10.0 * rank, 10.0 * rank + 1])
    do("Gather from all ranks")
    assert do["whole"].tolist() == [0, 1, 10, 11]
    do("Send each rank its part")
    assert do["y"].tolist() == [rank, 10 + rank]
    do["net"] = net = torch.nn.Linear(4, 1, bias=False)
    do("Warm up the learning rate")
    assert do["sgd"].param_groups[0]["lr"] == pytest.approx(0.2)
    do("Compute in 16 bits")
    before = net.weight.detach().clone()
    net(torch.full((1, 4), 1 / 3)).sum().backward()
    do["sgd"].step()
    third = float(torch.tensor(1 / 3).half())  # as it was sent
    assert torch.allclose(before - net.weight, torch.tensor(0.2 * third), atol=1e-7)
    assert do.rows.pop("Find who is missing") == []  # a warning
    return sorted(do.rows)
