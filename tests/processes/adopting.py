"""A process group that the user has made is adopted, for `test_users_own_group`.

Apart from the tests, because every new process reads this file and should be quick.
"""

from __future__ import annotations

import os
from pathlib import Path

import d2lmulti
from d2lmulti.backends import get_backend
from d2lmulti.errors import InvalidInput
from d2lmulti.processes.process_group import start, started, stop


def join_torch(rank: int, size: int) -> None:
    from torch import distributed

    file = Path(os.environ["D2LMULTI_FOLDER"]) / "mine"
    distributed.init_process_group(
        "gloo", init_method=f"file://{file}", rank=rank, world_size=size
    )


def join_paddle(rank: int, size: int) -> None:
    from paddle import distributed

    os.environ.update(
        PADDLE_TRAINER_ID=str(rank),
        PADDLE_TRAINERS_NUM=str(size),
        PADDLE_CURRENT_ENDPOINT=f"127.0.0.1:{rank}",
        PADDLE_MASTER="127.0.0.1:" + os.environ["MASTER_PORT"],
        PADDLE_DISTRI_BACKEND="gloo",
    )
    distributed.init_parallel_env()


def sum_of_mine(name: str, rank: int) -> float:
    """All-reduce with the framework's own call."""
    if name == "torch":
        import torch
        from torch import distributed

        x = torch.tensor([1.0 + rank])
    else:
        import paddle
        from paddle import distributed

        x = paddle.to_tensor([1.0 + rank])
    distributed.all_reduce(x)
    return float(x.numpy()[0])


def adopting(name: str, rounds: list[bool]) -> list[tuple[object, ...]]:
    """Join a group of mine, and in each round start on it, train, stop, and go on.

    `told`, a round's value: whether the environment names rank and size too.
    """
    group = started()
    assert group is not None
    (rank,), size = group.local_ranks, group.size
    stop()  # what `launch` has started
    {"torch": join_torch, "paddle": join_paddle}[name](rank, size)
    return [adopted(name, rank, size, told) for told in rounds]


def adopted(name: str, rank: int, size: int, told: bool) -> tuple[object, ...]:
    if not told:
        for variable in ("RANK", "WORLD_SIZE"):
            for prefix in ("D2LMULTI_", ""):
                os.environ.pop(prefix + variable, None)
        for variable in ("PADDLE_TRAINER_ID", "PADDLE_TRAINERS_NUM"):
            os.environ.pop(variable, None)
    refused = ""
    if told:
        os.environ["D2LMULTI_WORLD_SIZE"] = str(size + 1)
        try:
            start(name)
        except InvalidInput as error:
            refused = str(error)
        os.environ["D2LMULTI_WORLD_SIZE"] = str(size)
    group, B = start(name), get_backend(name)
    places = [str(device) for device in d2lmulti.devices(size, name, simulate=True)]
    x = B.array([1.0 + rank])
    d2lmulti.allreduce([x], "native")
    d2lmulti.allreduce([x], "ring")
    texts = group.engine.allgather_text(f"rank {rank}")
    history = d2lmulti.train(size, model="mlp", epochs=1, backend=name)
    stop()
    after = sum_of_mine(name, rank), started()
    return (
        float(B.numpy(x)[0]), texts, places, history.losses[-1], refused, *after
    )  # fmt: skip
