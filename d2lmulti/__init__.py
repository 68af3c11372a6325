"""Multi-GPU training from scratch: the library that the book's chapters build.

`import d2lmulti` imports no framework, and each name below only when it is used.
"""

from importlib import import_module
from typing import Any

__version__ = "0.2.0"

# Name -> the module that defines it, in the order in which the book introduces them.
_HOME = {
    "get_backend": "backends",
    "backend_of": "backends",
    "Device": "comm.devices",
    "devices": "comm.devices",
    "try_gpu": "comm.devices",
    "try_all_gpus": "comm.devices",
    "track_devices": "comm.devices",
    "timeline": "observe.timeline",
    "Timeline": "observe.timeline",
    "get_model": "models",
    "get_params": "parallel.data",
    "allreduce": "comm.group",
    "split_batch": "parallel.step",
    "SGD": "optimizers",
    "Adam": "optimizers",
    "AdamW": "optimizers",
    "train_batch": "parallel.data",
    "load": "data",
    "Dataset": "data",
    "train": "training.loop",
    "evaluate": "training.loop",
    "History": "training.history",
    "ledger": "observe.ledger",
    "Ledger": "observe.ledger",
    "get_split": "models.tensor_parallel",
    "split_params": "parallel.tensor",
    "train_layers": "parallel.tensor",
    "gather_params": "parallel.tensor",
    "shard_params": "parallel.flat_parameters",
    "train_shards": "parallel.sharded",
    "gather_shards": "parallel.flat_parameters",
    "reduce": "comm.collectives",
    "broadcast": "comm.collectives",
    "reduce_scatter": "comm.collectives",
    "allgather": "comm.collectives",
    "alltoall": "comm.collectives",
    "ParameterServer": "parallel.parameter_server",
    "Link": "observe.link",
    "worker_seconds": "observe.push_pull",
    "train_on_servers": "training.on_servers",
    "ServerHistory": "training.on_servers",
    "DeploymentConfig": "parallel.parameter_server",
    "train_clones": "parallel.parameter_server",
}
__all__ = list(_HOME)  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
