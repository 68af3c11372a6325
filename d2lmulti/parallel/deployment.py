"""TF-Slim's deployment: one set of variables on the CPU, clones of the model on GPUs.

The options are those of `slim/deployment/model_deploy.py` in TensorFlow's model garden,
with our devices in place of TensorFlow's. Chapter: *parameter_server*.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ..backends import element_count, itemsize
from ..backends.protocol import Tensor
from ..checks import check_choice, check_count, check_list
from ..comm.devices import Device, devices
from ..comm.group import local_group
from ..errors import InvalidInput, framework_errors
from ..events import notify_round
from ..models import get_model
from ..models.model import Model, losses_of
from ..models.networks import LENET
from ..optimizers import Optimizer
from ..plans.rounds import make_round
from .step import Step

_CPU = Device("cpu")


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

    num_clones: copies of the model per replica, one per GPU (simulated if need be);
    clone_on_cpu: put them all on the CPU. num_replicas: worker processes, of which this
    is number replica_id; num_ps_tasks: servers that store the variables, 0 for none.
    """

    num_clones: int = 1  #: copies of the model, one per GPU
    clone_on_cpu: bool = False  #: put them all on the CPU
    replica_id: int = 0  #: of this process
    num_replicas: int = 1  #: worker processes
    num_ps_tasks: int = 0  #: servers of variables
    backend: str | None = field(default=None, kw_only=True)  #: the framework

    def __post_init__(self) -> None:
        check_count("num_clones", self.num_clones)
        if not 0 <= self.replica_id < self.num_replicas:
            raise InvalidInput(
                f"expected a replica_id from 0 to {self.num_replicas - 1}, got "
                f"{self.replica_id}"
            )
        if self.num_ps_tasks < (self.num_replicas > 1):
            raise InvalidInput(
                f"expected at least one of num_ps_tasks for {self.num_replicas} "
                f"replicas, got {self.num_ps_tasks}: they share variables by servers"
            )

    def variables_device(self, number: int = 0) -> Place:
        """Return where variable `number` lives: on the CPU, of the servers in turn."""
        if self.num_ps_tasks:
            return Place(_CPU, "ps", number % self.num_ps_tasks)
        return Place(_CPU)

    def inputs_device(self) -> Place:
        """Return where batches are read: this worker's CPU."""
        return self._here(_CPU)

    def optimizer_device(self) -> Place:
        """Return where the clones' gradients are summed: this worker's CPU."""
        return self._here(_CPU)

    def clone_device(self, i: int) -> Place:
        """Return where clone i computes."""
        if self.clone_on_cpu:
            return self._here(_CPU)
        return self._here(devices(self.num_clones, self.backend)[i])

    def _here(self, device: Device) -> Place:
        if self.num_ps_tasks:
            return Place(device, "worker", self.replica_id)
        return Place(device)


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
    """Take one step on a batch: clones compute, the CPU sums up and updates `params`.

    X (n, ...), y (n,): the whole batch, on the CPU. `params` lie on the CPU with
    gradients attached (`get_params(params, "cpu")`) and are updated in place. scale
    `clones` is TF-Slim's: each clone's *mean* loss divided by the number of clones;
    `examples` divides the sums by n. weight_decay / 2 times the sum of all squared
    weights is added to the first clone's loss only, so that it counts once. Returns the
    loss.

    In the ledger clones are ranks 0 to k-1, the CPU, or each server, the ranks after
    them. Raises `InvalidInput` for what `split_batch` refuses, for an unknown scale and
    for a model with statistics besides its weights.
    """
    model, k = get_model(model), config.num_clones
    check_list("params", params, "tensors", hint='use get_params(params, "cpu")')
    check_choice("scale", scale, ("clones", "examples"))
    if model.buffers:
        raise InvalidInput(
            f"expected a model of weights only, got {model.name}, whose statistics "
            "each clone would change in its own copy; use train_batch"
        )
    places = [config.clone_device(i).device for i in range(k)]
    step = Step(
        X, y, places, lr, optimizer=optimizer, group=local_group(k),
        vocabulary=model.vocabulary,
    )  # fmt: skip
    B, ((Xs, ys),) = step.B, step.split()
    clones = [[B.copy_to(p, place) for p in params] for place in places]
    for p in (p for clone in clones for p in clone):
        B.attach_grad(p)
    _count(params, config, add=False)
    losses = []
    with B.record(), framework_errors(model.name, X):
        for clone, X_shard, y_shard in zip(clones, Xs, ys, strict=True):
            n = len(y_shard) * k if scale == "clones" else len(X)
            logits = model.forward(B, clone, X_shard)
            losses.append(losses_of(B, logits, y_shard, y).sum() / n)
        if weight_decay:
            squares = [(p * p).sum() for p in clones[0]]
            losses[0] = losses[0] + sum(squares[1:], squares[0]) * (weight_decay / 2)
    B.backward(losses)
    for i, p in enumerate(params):
        for j, clone in enumerate(clones):
            B.write_(B.grad(p), 0, element_count(p), B.grad(clone[i]), add=j > 0)
    _count(params, config, add=True)
    step.optimizer.step_(params, state, lr, n=1)  # divided already
    return sum(float(B.numpy(loss)) for loss in losses)


def _count(params: Sequence[Tensor], config: DeploymentConfig, add: bool) -> None:
    """Count the weights that are sent to the clones, or the gradients back (`add`)."""
    if config.clone_on_cpu and not config.num_ps_tasks:
        return  # they are there already
    clones = list(range(config.num_clones))
    for i, p in enumerate(params):
        home = config.num_clones + config.variables_device(i).task
        source, target = (clones, home) if add else (home, clones)
        this_round = make_round(source, target, 0, element_count(p), add)
        notify_round(this_round, itemsize(p))
