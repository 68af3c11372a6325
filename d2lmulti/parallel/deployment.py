"""TF-Slim's deployment: one set of variables on the CPU, clones of the model on GPUs.

The options are those of `slim/deployment/model_deploy.py` in TensorFlow's model garden,
with our devices in place of TensorFlow's. Chapter: *parameter_server*.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ..backends import backend_name
from ..backends.protocol import Tensor, element_count, itemsize
from ..checks import (
    MAX_RANKS,
    check_choice,
    check_count,
    check_flag,
    check_kind,
    check_list,
    check_number,
    check_positive,
)
from ..comm.devices import Device, devices
from ..comm.group import local_group
from ..comm.split import check_batch, split_batch
from ..errors import InvalidInput, framework_errors
from ..events import notify_round
from ..models import get_model
from ..models.model import Model, losses_of
from ..models.networks import LENET
from ..optimizers import Optimizer, check_optimizer
from ..plans.rounds import make_round

_CPU = Device("cpu")
SCALES = ("clones", "examples")


class Place(NamedTuple):
    """A device of a job's task; without servers there is one process and no job."""

    device: Device
    job: str = ""
    task: int = 0

    def __str__(self) -> str:
        return f"{self.job}:{self.task} {self.device}" if self.job else str(self.device)


@dataclass(frozen=True)
class DeploymentConfig:
    """Where variables, inputs, optimizer and clones live.

    num_clones: copies of the model in a replica, one a GPU (simulated if need be);
    clone_on_cpu: put them all on the CPU. num_replicas: worker processes, of which this
    is number replica_id; num_ps_tasks: servers that keep the variables, 0 for none.
    Raises `InvalidInput` for counts below their least and for replicas without servers.
    """

    num_clones: int = 1  #: in a replica, one a GPU
    clone_on_cpu: bool = False  #: all clones on the CPU
    replica_id: int = 0  #: of this process
    num_replicas: int = 1  #: worker processes
    num_ps_tasks: int = 0  #: servers of variables
    backend: str | None = field(default=None, kw_only=True)  #: the framework

    def __post_init__(self) -> None:
        least = {"num_clones": 1, "replica_id": 0, "num_replicas": 1, "num_ps_tasks": 0}
        for name, smallest in least.items():
            check_count(name, getattr(self, name), smallest, MAX_RANKS)
        check_flag("clone_on_cpu", self.clone_on_cpu)
        if self.backend is not None:
            backend_name(self.backend)
        if self.replica_id >= self.num_replicas:
            raise InvalidInput(
                f"expected a replica_id below num_replicas = {self.num_replicas}, got "
                f"{self.replica_id}; replicas are numbered from 0"
            )
        if self.num_replicas > 1 and self.num_ps_tasks < 1:
            raise InvalidInput(
                f"expected num_ps_tasks of at least 1 for {self.num_replicas} "
                "replicas, got 0; replicas share their variables through servers"
            )

    def variables_device(self, number: int = 0) -> Place:
        """Where variable `number` lives: on the CPU, of the servers in turn."""
        number = check_count("number", number, min=0)
        if self.num_ps_tasks:
            return Place(_CPU, "ps", number % self.num_ps_tasks)
        return Place(_CPU)

    def inputs_device(self) -> Place:
        """Where batches are read: this worker's CPU."""
        return self._here(_CPU)

    def optimizer_device(self) -> Place:
        """Where the clones' gradients are summed: this worker's CPU."""
        return self._here(_CPU)

    def clone_device(self, i: int) -> Place:
        """Where clone i computes."""
        self._check_clone(i)
        if self.clone_on_cpu:
            return self._here(_CPU)
        return self._here(devices(self.num_clones, self.backend)[i])

    def clone_scope(self, i: int) -> str:
        """What clone i is called; a single clone has no name, as in TF-Slim."""
        self._check_clone(i)
        return f"clone_{i}" if self.num_clones > 1 else ""

    def _here(self, device: Device) -> Place:
        if self.num_ps_tasks:
            return Place(device, "worker", self.replica_id)
        return Place(device)

    def _check_clone(self, i: int) -> None:
        check_count("clone", i, min=0, max=self.num_clones - 1)


def train_clones(
    X: Tensor,
    y: Tensor,
    params: Sequence[Tensor],
    config: DeploymentConfig,
    lr: float,
    *,
    model: str | Model = LENET,
    optimizer: Optimizer | None = None,
    state: Sequence[Tensor] = (),
    scale: str = "clones",
    weight_decay: float = 0.0,
) -> float:
    """Take one step on a batch: clones compute, the CPU adds up and updates `params`.

    X (n, ...), y (n,): the whole batch, on the CPU. `params` lie on the CPU with
    gradients attached (`get_params(params, "cpu")`) and are updated in place. scale
    `clones` is TF-Slim's: each clone's *mean* loss divided by the number of clones;
    `examples` divides the sums by n. weight_decay / 2 times the sum of all squared
    weights joins the first clone's loss only, so that it counts once. Returns the loss.

    In the ledger clones are ranks 0 to k-1, the CPU, or each server, the ranks after
    them. Raises `InvalidInput` for what `split_batch` refuses, for an unknown scale and
    for a model with statistics beside its weights.
    """
    model = get_model(model)
    B = check_batch(X, y, model.vocabulary)
    check_list("params", params, "tensors", hint='use get_params(params, "cpu")')
    check_kind("config", config, DeploymentConfig, "a DeploymentConfig")
    check_positive("lr", lr, "try 0.05")
    optimizer = check_optimizer(optimizer)
    check_list("state", state, "tensors", min_length=0)
    check_choice("scale", scale, SCALES)
    check_number("weight_decay", weight_decay, min=0)
    if model.buffers:
        raise InvalidInput(
            f"expected a model of weights only, got {model.name}, whose statistics "
            "each clone would change in its own copy; use train_batch"
        )
    k = config.num_clones
    places = [config.clone_device(i).device for i in range(k)]
    clones = [[B.copy_to(p, place) for p in params] for place in places]
    for p in (p for clone in clones for p in clone):
        B.attach_grad(p)
    _count(params, config, add=False)
    X_shards, y_shards = split_batch(X, y, places, local_group(k))
    with B.record():
        losses = []
        for clone, shard, labels in zip(clones, X_shards, y_shards, strict=True):
            n = len(labels) * k if scale == "clones" else len(X)
            with framework_errors(model.name, X):
                logits = model.forward(B, clone, shard)
                losses.append(losses_of(B, logits, labels, y).sum() / n)
        if weight_decay:
            squares = [(p * p).sum() for p in clones[0]]
            losses[0] = losses[0] + sum(squares[1:], squares[0]) * (weight_decay / 2)
    B.backward(losses)
    for i, p in enumerate(params):
        for j, clone in enumerate(clones):
            B.write_(B.grad(p), 0, element_count(p), B.grad(clone[i]), add=j > 0)
    _count(params, config, add=True)
    optimizer.step_(params, state, lr, n=1)  # divided already
    return sum(float(B.numpy(loss)) for loss in losses)


def _count(params: Sequence[Tensor], config: DeploymentConfig, add: bool) -> None:
    """Count the weights on their way to the clones, or the gradients back (`add`)."""
    if config.clone_on_cpu and not config.num_ps_tasks:
        return  # they are there already
    homes = [
        config.num_clones + config.variables_device(i).task for i in range(len(params))
    ]
    clones = list(range(config.num_clones))
    for p, home in zip(params, homes, strict=True):
        source, target = (clones, home) if add else (home, clones)
        this_round = make_round(source, target, 0, element_count(p), add)
        notify_round(this_round, itemsize(p))
