"""Multi-GPU training from scratch: the library that the book's chapters build.

The names below stand in the order in which the book meets them. Importing this package
imports no framework.
"""

from .backends import backend_of, get_backend
from .cluster.ledger import Ledger, ledger
from .comm.collectives import allreduce
from .comm.devices import Device, devices, try_all_gpus, try_gpu
from .comm.split import split_batch
from .models import get_model
from .optimizers import SGD
from .parallel.data import get_params, train_batch
from .training.datasets import Dataset, load
from .training.evaluate import evaluate
from .training.loop import History, train

__all__ = [
    "get_backend",
    "backend_of",
    "Device",
    "devices",
    "try_gpu",
    "try_all_gpus",
    "get_model",
    "get_params",
    "allreduce",
    "split_batch",
    "SGD",
    "train_batch",
    "load",
    "Dataset",
    "train",
    "evaluate",
    "History",
    "ledger",
    "Ledger",
]
__version__ = "0.1.0"
