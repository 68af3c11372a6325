"""Multi-GPU training from scratch: the library that the book's chapters build.

The names below stand in the order in which the book meets them. Importing this package
imports no framework.
"""

from . import interrupt

interrupt.end_at_once()  # now, because the imports below take a while

from .backends import backend_of, get_backend
from .cluster.hardware import Link
from .cluster.ledger import Ledger, ledger
from .cluster.push_pull import worker_seconds
from .cluster.timeline import Timeline, timeline
from .comm.allreduce import allreduce
from .comm.collectives import allgather, alltoall, broadcast, reduce, reduce_scatter
from .comm.devices import Device, devices, track_devices, try_all_gpus, try_gpu
from .comm.split import split_batch
from .data.datasets import Dataset, load
from .models import get_model
from .models.tensor_parallel.table import get_split
from .optimizers import SGD, Adam, AdamW
from .parallel.data import get_params, train_batch
from .parallel.deployment import DeploymentConfig, train_clones
from .parallel.parameter_server import ParameterServer
from .parallel.sharded import gather_shards, shard_params, train_shards
from .parallel.tensor import gather_params, split_params, train_layers
from .training.evaluate import evaluate
from .training.history import History
from .training.loop import train
from .training.on_servers import ServerHistory, train_on_servers

__all__ = [
    "get_backend",
    "backend_of",
    "Device",
    "devices",
    "try_gpu",
    "try_all_gpus",
    "track_devices",
    "timeline",
    "Timeline",
    "get_model",
    "get_params",
    "allreduce",
    "split_batch",
    "SGD",
    "Adam",
    "AdamW",
    "train_batch",
    "load",
    "Dataset",
    "train",
    "evaluate",
    "History",
    "ledger",
    "Ledger",
    "get_split",
    "split_params",
    "train_layers",
    "gather_params",
    "shard_params",
    "train_shards",
    "gather_shards",
    "reduce",
    "broadcast",
    "reduce_scatter",
    "allgather",
    "alltoall",
    "ParameterServer",
    "Link",
    "worker_seconds",
    "train_on_servers",
    "ServerHistory",
    "DeploymentConfig",
    "train_clones",
]
__version__ = "0.2.0"
