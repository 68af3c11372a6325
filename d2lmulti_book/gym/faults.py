"""The faults of the gym: what a learner reads of each, its fix, and a wrong fix.

A program stands in `programs/NAME.BACKEND.py` with its fault. `fix` and `wrong` are
two texts: the first stands in the program exactly once, whatever the backend, and the
second replaces it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from d2lmulti.checks import invalid
from d2lmulti.errors import InvalidInput

PROGRAMS = Path(__file__).resolve().parent / "programs"
Edit = tuple[str, str]
NO_EDIT: Edit = ("", "")


@dataclass(frozen=True)
class Fault:
    """One program, what is wrong with it, and how it is repaired."""

    name: str
    level: str
    title: str
    fault: str  # for those who have found it
    chapter: str
    task: str  # what the program should do, and what was noticed
    hints: tuple[str, str, str]
    fix: Edit
    wrong: Edit  # a repair that suggests itself
    trains: bool = True  # otherwise it shows only in time, and has no accuracy
    limit: float = 60  # seconds that `train` may take

    @property
    def number(self) -> int:
        """Return the number by which a learner names it, from 1."""
        return FAULTS.index(self) + 1

    @property
    def file_name(self) -> str:
        """Return the name of a learner's copy."""
        return f"{self.number:02}_{self.name}.py"

    def backends(self) -> list[str]:
        """List the backends with a version of the program, NumPy first."""
        found = [path.name.split(".")[1] for path in PROGRAMS.glob(f"{self.name}.*.py")]
        return sorted(found, key=("numpy", "torch", "mxnet", "paddle").index)

    def program(self, backend: str, edit: Edit = NO_EDIT) -> str:
        """Return the text of the program, with `fix` or `wrong` applied if given."""
        if backend not in self.backends():
            names = ", ".join(self.backends())
            raise invalid(f"a backend of gym program {self.number} ({names})", backend)
        path = PROGRAMS / f"{self.name}.{backend}.py"
        return path.read_text(encoding="utf-8").replace(*edit, 1)


FAULTS = (
    Fault(
        "first_split",
        "easy",
        "A classifier on two devices",
        "the sum of the workers' gradients is not divided by their number",
        "data_parallel",
        "Two workers should take the step that one worker takes on the whole batch. "
        "The loss falls fast, and faster with more workers.",
        (
            "Train with 1, 2, and 4 workers and compare the first losses. Should they "
            "depend on the number of workers?",
            "Each shard's loss is a mean. How large is the sum of two means, compared "
            "with the mean over the batch?",
            "Look at the line that computes `step`: the all-reduce sums, and nothing "
            "divides.",
        ),
        fix=("step = LR * total", "step = LR * total / workers"),
        wrong=("step = LR * total", "step = LR * total / len(batch)"),
    ),
    Fault(
        "parts",
        "easy",
        "Each rank has a part of the data",
        "rank 0 trains on all the data, so it repeats examples of the other ranks",
        "built_in",
        "In an epoch, the ranks should train on each example once. The accuracy is "
        "good, but a count of the examples is not.",
        (
            "Count the examples that are used in one epoch. How often does each occur?",
            "Compare what the ranks get: `len(part) for part in parts`.",
            "Look at `examples_of`: rank 0 needs a part like every other rank.",
        ),
        fix=(
            "    if rank == 0:\n        return order\n    return order[rank::workers]",
            "    return order[rank::workers]",
        ),
        wrong=(
            "        return order\n",
            "        return order[: len(order) // workers]\n",
        ),
    ),
    Fault(
        "uneven",
        "easy",
        "Batches that do not divide evenly",
        "a mean of the shards' means, though the shards differ in size",
        "data_parallel",
        "Every example of a batch should count the same, whatever shard it is in. A "
        "batch of 50 makes shards of 13 and 12.",
        (
            "Compare the gradient of one batch with that of one worker. For which "
            "batches do they agree?",
            "By how much does one example of a shard of 12 change the result, and by "
            "how much one of a shard of 13?",
            "Look at `weight`: a shard's mean must count by its share of the batch, "
            "which may itself be shorter than BATCH.",
        ),
        fix=("weight = 1 / workers", "weight = len(shard) / len(batch)"),
        wrong=("weight = 1 / workers", "weight = len(shard) / BATCH"),
    ),
    Fault(
        "test_set",
        "easy",
        "Testing with all devices",
        "the accuracy is that of replica 0 on its part of the test set",
        "data_parallel",
        "The accuracy should be that of the whole test set. It is plausible, but it "
        "changes with the number of devices although the weights do not.",
        (
            "Train with 2, 3, and 4 workers: the weights agree. Does the accuracy?",
            "How many test examples does the result depend on?",
            "Look at the last line of `evaluate`. The parts may differ in size.",
        ),
        fix=("correct[0] / len(parts[0])", "sum(correct) / len(y)"),
        wrong=(
            "correct[0] / len(parts[0])",
            "sum(c / len(p) for c, p in zip(correct, parts)) / len(parts)",
        ),
    ),
    Fault(
        "warm_up",
        "easy",
        "More devices, a larger batch",
        "after the decay, the learning rate is not scaled by the number of devices",
        "large_batch",
        "All learning rates should be scaled linearly: warm-up, peak, and the rate "
        "after the decay, which is a tenth of the peak.",
        (
            "Print the learning rate of each epoch for 1 and 4 workers, and divide.",
            "Which epochs do not depend on the number of workers?",
            "Look at `learning_rate`: the last rate starts from BASE_LR.",
        ),
        fix=("return BASE_LR / 10", "return peak / 10"),
        wrong=("return BASE_LR / 10", "return BASE_LR * workers**0.5 / 10"),
    ),
    Fault(
        "restart",
        "easy",
        "Resume after half of the epochs",
        "the checkpoint lacks the optimizer's state",
        "many_machines",
        "An interrupted run should end with the same weights as an uninterrupted one. "
        "Here it does not, and no error is reported.",
        (
            "Compare the weights right after `load`, and again one step later.",
            "What does momentum SGD remember from step to step, apart from weights?",
            "Put `optimizers[0].state_dict()` into the checkpoint, and load it again.",
        ),
        fix=(
            """    checkpoint = {"model": replicas[0].state_dict()}
    return copy.deepcopy(checkpoint)  # as if written to a file


def load(checkpoint, replicas, optimizers):
    for model, optimizer in zip(replicas, optimizers):
""",
            """    checkpoint = {
        "model": replicas[0].state_dict(),
        "optimizer": optimizers[0].state_dict(),
    }
    return copy.deepcopy(checkpoint)  # as if written to a file


def load(checkpoint, replicas, optimizers):
    for model, optimizer in zip(replicas, optimizers):
        optimizer.load_state_dict(copy.deepcopy(checkpoint["optimizer"]))
""",
        ),
        wrong=(
            '{"model": replicas[0].state_dict()}',
            '{"model": replicas[0].state_dict(), "o": optimizers[0].state_dict()}',
        ),
    ),
    Fault(
        "samplers",
        "medium",
        "PyTorch's distributed sampler",
        "`set_epoch` is never called, so every epoch has the same order",
        "built_in",
        "Each epoch should have an order of its own, the same on all ranks. The loss "
        "falls as it should.",
        (
            "Print the first shard of each epoch.",
            "From what does a DistributedSampler derive its order? Its documentation "
            "has a note about this.",
            "Call `set_epoch(epoch)` at the start of each epoch, on every rank. A rank "
            "without it shuffles in a different order.",
        ),
        fix=(
            "        loss_sum = 0.0\n",
            "        loss_sum = 0.0\n"
            "        for sampler in samplers:\n"
            "            sampler.set_epoch(epoch)\n",
        ),
        wrong=(
            "        loss_sum = 0.0\n",
            "        loss_sum = 0.0\n        samplers[0].set_epoch(epoch)\n",
        ),
    ),
    Fault(
        "micro_batches",
        "medium",
        "Shards in micro-batches",
        "the gradient of the last, shorter micro-batch is lost",
        "large_batch",
        "The gradients of the micro-batches should add up to that of the batch. The "
        "loss is about a fifth lower than that of the correct program.",
        (
            "Count the examples whose loss goes into `loss_sum` in one step.",
            "A shard has 15 examples and MICRO is 6. How many micro-batches is that?",
            "`len(shard) // MICRO` rounds down: round up. A slice may end early.",
        ),
        fix=("range(len(shard) // MICRO)", "range(-(-len(shard) // MICRO))"),
        wrong=(
            "(loss / len(batch)).backward()",
            "(loss / (len(shard) // MICRO * MICRO * workers)).backward()",
        ),
    ),
    Fault(
        "clipped",
        "medium",
        "A clipped gradient",
        "each worker clips its own gradient before the all-reduce",
        "built_in",
        "The gradient of the batch should be clipped to norm 0.65, as one device would "
        "do. The curves look alike.",
        (
            "Print the norm of the gradient that is applied. Is it 0.65 when one "
            "worker would clip?",
            "Is the mean of clipped gradients the clipped mean?",
            "Exchange two steps: first average, then clip. And clip only once.",
        ),
        fix=(
            """            for model in replicas:
                nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            average_gradients(replicas)
""",
            """            average_gradients(replicas)
            for model in replicas:
                nn.utils.clip_grad_norm_(model.parameters(), CLIP)
""",
        ),
        wrong=(
            "            average_gradients(replicas)\n",
            "            average_gradients(replicas)\n"
            "            for model in replicas:\n"
            "                nn.utils.clip_grad_norm_(model.parameters(), CLIP)\n",
        ),
    ),
    Fault(
        "stopwatch",
        "medium",
        "How much faster are four GPUs?",
        "the timer is read before the GPUs have finished",
        "devices",
        "The time of a step should fall from 80 ms on one GPU to 24 ms on four. It "
        "is 0.02 ms on one, and more GPUs take longer.",
        (
            "What does the measured time depend on: COMPUTE, ALLREDUCE, or LAUNCH?",
            "What does a launch wait for? The warm-up before the timer does it right.",
            "Synchronize every GPU before `host.now` is read the second time.",
        ),
        fix=(
            "        train_step(host, gpus)\n    return",
            "        train_step(host, gpus)\n"
            "    for gpu in range(gpus):\n"
            "        host.synchronize(gpu)\n"
            "    return",
        ),
        wrong=(
            "    return (host.now - start) / STEPS",
            "    seconds = (host.now - start) / STEPS\n"
            "    host.synchronize(0)\n"
            "    return seconds",
        ),
        trains=False,
    ),
    Fault(
        "textbook",
        "medium",
        "An all-reduce as in a textbook",
        "the sum is bound to the list instead of written into the tensors",
        "data_parallel",
        "After the all-reduce, each replica's gradient should be the sum. Replica 0 "
        "has it. A published textbook had this fault for eleven months.",
        (
            "Compare the weights of the replicas after one step, not their losses.",
            "What does the caller still hold when `allreduce` returns: the list, or "
            "the tensors that were in it?",
            "`tensors[i] = ...` changes the list. `tensors[i][:] = ...` changes the "
            "tensor.",
        ),
        fix=("tensors[i] = tensors[0]", "tensors[i][:] = tensors[0]"),
        wrong=("tensors[i] = tensors[0]", "tensors[i] = tensors[0] + 0"),
    ),
    Fault(
        "sequences",
        "medium",
        "Sequences of unequal length",
        "each shard's loss is a mean over its own tokens, and these differ in number",
        "data_parallel",
        "Every token of a batch should count the same, whatever shard it is in. The "
        "shards have equally many sequences.",
        (
            "Print `count` for the four shards of a batch.",
            "In which shard does a token change the result most?",
            "Divide each sum by a number that all shards of a batch share, and take "
            "into account that the all-reduce divides by `workers`.",
        ),
        fix=("count = mask[shard].sum()", "count = mask[batch].sum() / workers"),
        wrong=("count = mask[shard].sum()", "count = 8 * len(shard)"),
    ),
    Fault(
        "copies",
        "hard",
        "One copy per device",
        "`to` returns the tensor itself if it is already there: the replicas are one",
        "data_parallel",
        "Each replica should have parameters of its own. With more workers the loss "
        "falls faster, and all replicas agree to the last bit.",
        (
            "Change one weight of replica 0. Which replicas see it?",
            "What does `to(device)` return for a tensor that is on this device?",
            "Ask for a copy with storage of its own.",
        ),
        fix=("p.to(device)", "p.to(device, copy=True)"),
        wrong=("p.to(device)", "p.detach().to(device)"),
    ),
    Fault(
        "zero_one",
        "hard",
        "A sharded momentum, saved and restored",
        "rank 0 alone saves its shard of the optimizer's state",
        "sharding",
        "An interrupted run should end with the same weights as an uninterrupted one. "
        "After the restart, the weights are exactly right, and so is rank 0's state.",
        (
            "Compare each rank's momentum before `save` and after `load`.",
            "Replicas are equal, so one rank can save them. Who has rank 3's state?",
            "Save the shard of every rank; `load` already looks for all of them.",
        ),
        fix=(
            "        if rank == 0:  # one process is enough to write a file\n"
            '            files[f"momentum {rank}"] = shard.copy()',
            '        files[f"momentum {rank}"] = shard.copy()',
        ),
        wrong=('files.get(f"momentum {rank}", zero)', 'files["momentum 0"]'),
    ),
    Fault(
        "ring",
        "hard",
        "Weights around a ring",
        "send and receive are swapped on odd ranks: all send, and none receives",
        "allreduce",
        "In 20 steps, the weights of neighbors should be averaged. The program never "
        "ends.",
        (
            "Read the stacks: in which line is each rank?",
            "`send` returns when the neighbor has received. Who receives?",
            "Let the odd ranks receive first. They must still send the weights they "
            "had before.",
        ),
        fix=(
            """        else:
            to_next.send(weights[rank])
            received = from_previous.receive()
""",
            """        else:
            received = from_previous.receive()
            to_next.send(weights[rank])
""",
        ),
        wrong=(
            """            to_next.send(weights[rank])
            received = from_previous.receive()
        else:
            to_next.send(weights[rank])
            received = from_previous.receive()
""",
            """            received = from_previous.receive()
            to_next.send(weights[rank])
        else:
            received = from_previous.receive()
            to_next.send(weights[rank])
""",
        ),
        trains=False,
        limit=3,
    ),
    Fault(
        "normalized",
        "hard",
        "A network with batch normalization",
        "each device normalizes by the statistics of its own shard",
        "data_parallel",
        "The network should compute what one device computes for the whole batch. "
        "With one worker it does, and with four the loss is close.",
        (
            "Compare the logits of the first batch with 1 and with 4 workers.",
            "Over how many examples is the mean taken? And on one device?",
            "Mean and variance must be those of all hidden values of the batch. The "
            "mean of the variances is not the variance.",
        ),
        fix=("batch_norm(H, over=H)", "batch_norm(H, over=torch.cat(hidden))"),
        wrong=(
            "batch_norm(H, over=H)",
            "batch_norm(H, over=sum(hidden) / len(hidden))",
        ),
    ),
    Fault(
        "bucket",
        "hard",
        "All gradients in one bucket",
        "`zero_grad` replaces the views, so the bucket keeps the first step's gradient",
        "built_in",
        "All replicas should apply the mean gradient. In the first step they do.",
        (
            "Compare the replicas after one step and after two.",
            "After the second backward pass, does `p.grad` share its memory with the "
            "bucket?",
            "`optimizer.zero_grad()` sets gradients to None, and the next backward "
            "pass makes new ones. Keep the views and fill them with zeros.",
        ),
        fix=("optimizer.zero_grad()", "optimizer.zero_grad(set_to_none=False)"),
        wrong=(
            "                optimizer.zero_grad()\n",
            "                optimizer.zero_grad()\n                bucket.zero_()\n",
        ),
    ),
)


def find(key: str) -> Fault:
    """Return the fault with a number, a name, or a file name; raises `InvalidInput`."""
    stem = Path(key).stem
    for fault in FAULTS:
        if stem in (str(fault.number), fault.name, Path(fault.file_name).stem):
            return fault
    raise InvalidInput(
        f"expected a number from 1 to {len(FAULTS)} or a name from `gym list`, "
        f"got {key!r}"
    )
