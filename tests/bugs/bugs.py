"""Seeded bugs: patches to the library, and for each an ordinary test that notices it.

That test checks a general property, not only what the bug breaks. `old` must stand in
`file` exactly once.
"""

from __future__ import annotations

from typing import NamedTuple


class Bug(NamedTuple):
    """One mistake that is easily made: in `file`, `old` becomes `new`.

    `test`, a file below tests/ and the test's name, turns red. `way` is the one of
    tools/record_bugs.py that enters the changed line; `unseen` says why none shows it.
    """

    name: str
    file: str
    old: str
    new: str
    test: str
    way: str = "star"
    unseen: str = ""


DATA, TRAINING = "backends/test_data_parallel.py::", "backends/test_training.py::"
LAYER, PIPELINE = "backends/test_tensor_parallel.py::", "backends/test_pipeline.py::"
PLACES, SHARDED = "backends/test_placements.py::", "backends/test_sharded.py::"
ENGINES, MEMORY = "processes/test_engines.py::", "processes/test_shared_memory.py::"
MODULE = "processes/test_modules_in_buckets.py::"

SEQUENCE = "backends/test_sequence.py::test_any_parts_equal_one_device[torch]"
MESHES = "backends/test_on_mesh.py::"
EXPERTS = MESHES + "test_random_meshes_train_like_one_device[torch]"
TWO_DEVICES = DATA + "test_twenty_steps_equal_one_device[torch-mlp-2]"
THREE_DEVICES = DATA + "test_twenty_steps_equal_one_device[torch-mlp-3]"
BUCKETS = DATA + "test_a_step_in_buckets_has_the_same_bits[torch-100000-lenet]"
PLAIN_NUMPY = TRAINING + "test_training_equals_plain_numpy[torch-0.9-3]"
TRAINED = TRAINING + "test_two_and_three_devices_train_like_one[torch-mlp-3]"
SYNCHRONIZED = TRAINED.replace("mlp-3", "lenet_sync_bn-1")
EVALUATED = TRAINING + "test_evaluate_equals_a_count_in_numpy[torch-2-97]"
LAYERS = LAYER + "test_ten_steps_equal_one_device[torch-mlp-2]"
BLOCKS = LAYER + "test_ten_steps_equal_one_device[torch-transformer-2]"
STAGES = PIPELINE + "test_ten_steps_equal_one_device[torch-deep_mlp-zero_bubble-4]"
PLACEMENTS = PLACES + "test_random_placements_and_orders_train_like_one_device[torch]"
SHARDS = SHARDED + (
    "test_ten_steps_equal_one_device_and_all_bytes_the_formula[torch-2-momentum]"
)
PROCESSES = ENGINES + (
    "test_n_processes_train_as_n_devices_and_as_one[shared_memory-numpy-4]"
)
MODULES = MODULE + "test_two_processes_beside_the_frameworks_own[torch]"
SHARED_MEMORY = MEMORY + "test_the_same_bits_as_in_one_process[numpy]"
ROUND = MEMORY + "test_a_round_sends_what_was_there_before_it[numpy]"

REPORTED = "only what is reported is wrong; the weights are right"
ERROR = "the run ends with an error"
RACE = "it breaks a run only in a race between two processes"

BUGS = [
    Bug(
        "the online softmax does not rescale its running sums",
        "parallel/online_softmax.py",
        "rescale = B.exp(so_far[0] - top)",
        "rescale = 1.0",
        SEQUENCE,
        way="sequence",
    ),
    Bug(
        "keys and values travel around the ring in the wrong direction",
        "parallel/sequence.py",
        "make_round(rank, (rank + 1) % group.size,",
        "make_round(rank, (rank - 1) % group.size,",
        SEQUENCE,
        way="sequence",
    ),
    Bug(
        "the gradients of tokens are not sent back from the experts",
        "comm/cooperative.py",
        'forward, backward = "all-to-all", "all-to-all"',
        'forward, backward = "all-to-all", "identity"',
        EXPERTS,
        way="experts",
    ),
    Bug(
        "the gradient is not divided by n",
        "optimizers.py",
        "v = B.grad(p) / n",
        "v = B.grad(p)",
        PLAIN_NUMPY,
    ),
    Bug(
        "the gradient is divided by the size of the shard",
        "parallel/data.py",
        "    step.update_(trained)\n",
        "    step.n = len(parts[0][1][0])\n    step.update_(trained)\n",
        TWO_DEVICES,
    ),
    Bug(
        "mean of the shards' means",
        "parallel/data.py",
        "logits = model.forward(B, params, X)\n            losses.append(",
        "logits = model.forward(B, params, X)\n            losses.append("
        "len(step.X) / len(step.devices) / len(y) * ",
        TWO_DEVICES,
    ),
    Bug(
        "the all-reduce sums into a temporary tensor",
        "comm/group.py",
        "merge(part, source, out=part)",
        "merge(part, source)",
        TWO_DEVICES,
    ),
    Bug(
        "copy_to returns its argument instead of a copy",
        "backends/pytorch.py",
        "native(device), copy=True, memory_format=torch.contiguous_format",
        "native(device)",
        TWO_DEVICES,
    ),
    Bug(
        "get_params shares tensors that are already on the device",
        "parallel/data.py",
        "copies = [load(p, device) for p in params]",
        "copies = [backend_of(p).detach(p) for p in params]",
        TWO_DEVICES,
    ),
    Bug(
        "the star leaves out the last rank",
        "plans/allreduce.py",
        "yield make_round(others, 0, 0, length, add=True)",
        "yield make_round(others[: max(1, ranks - 2)], 0, 0, length, add=True)",
        THREE_DEVICES,
    ),
    Bug(
        "the star sends the sum to rank 1 only",
        "plans/allreduce.py",
        "yield make_round(0, others, 0, length, add=False)",
        "yield make_round(0, others[:1], 0, length, add=False)",
        THREE_DEVICES,
    ),
    Bug(
        "the last parameter's gradient is not all-reduced",
        "parallel/step.py",
        "for same_parameter in zip(*owned, strict=True):",
        "for same_parameter in list(zip(*owned, strict=True))[:-1]:",
        TWO_DEVICES,
    ),
    Bug(
        "the remainder of an uneven split is dropped",
        "plans/rounds.py",
        "return i * size + np.minimum(i, longer)",
        "return i * size",
        TWO_DEVICES,
    ),
    Bug(
        "labels are split in a different order from images",
        "parallel/data.py",
        "zip(device_params, Xs, ys, step.devices, strict=True)",
        "zip(device_params, Xs, [*ys[1:], ys[0]], step.devices)",
        TWO_DEVICES,
        way="even",
    ),
    Bug(
        "gradients are never zeroed",
        "parallel/step.py",
        "                self.B.clear_grad_(p)\n",
        "                pass\n",
        TWO_DEVICES,
    ),
    Bug(
        "synchronized batch norm uses each shard's own statistics",
        "models/batch_norm.py",
        "together=together(lenet_sync_bn, _BUFFERS)",
        "together=None",
        SYNCHRONIZED,
        way="statistics",
    ),
    Bug(
        "gradients are not summed in the backward pass of a split layer",
        "comm/cooperative.py",
        "dys += self._communicate(request, grads, backwards, forward=False)",
        "dys += grads",
        SYNCHRONIZED,
        way="statistics",
    ),
    Bug(
        "a stale bucket: the sum is not written back",
        "parallel/buckets.py",
        "elif not B.move_grad(params[i], flat, span[0]):",
        "else:",
        BUCKETS,
        way="buckets",
    ),
    Bug(
        "the last bucket is never all-reduced",
        "parallel/buckets.py",
        "while (number := len(self._works)) < len(self.buckets) and",
        "while (number := len(self._works)) < len(self.buckets) - 1 and",
        BUCKETS,
        way="buckets",
    ),
    Bug(
        "all replicas share one velocity",
        "training/strategy.py",
        "[optimizer.init(params) for params in self.trained()]",
        "[optimizer.init(self.trained()[0])] * len(self.owned)",
        TRAINED,
        unseen=ERROR,
    ),
    Bug(
        "the momentum is ignored",
        "optimizers.py",
        "return SGD(0.9 if momentum is None else momentum)",
        "return SGD()",
        PLAIN_NUMPY,
    ),
    Bug(
        "evaluation uses replica 0 only",
        "training/loop.py",
        "model.forward_eval(B, device_params[i], part)",
        "model.forward_eval(B, device_params[0], part)",
        EVALUATED,
        unseen=REPORTED,
    ),
    Bug(
        "the loss is averaged over batches",
        "training/loop.py",
        "loss = at.loss / data.train_y.size",
        "loss = at.loss / (batch_size * batch_count(n, batch_size))",
        PLAIN_NUMPY,
        unseen=REPORTED,
    ),
    Bug(
        "every epoch has the same shuffle order",
        "data/__init__.py",
        "np.random.default_rng([seed, epoch])",
        "np.random.default_rng([seed, 0])",
        PLAIN_NUMPY,
    ),
    Bug(
        "the short last batch is dropped",
        "data/__init__.py",
        "return -(-n // batch_size)  # rounded up",
        "return n // batch_size",
        PLAIN_NUMPY,
    ),
    Bug(
        "the initial weights ignore the seed",
        "training/loop.py",
        "model.initial(np.random.default_rng(seed))",
        "model.initial(np.random.default_rng())",
        TRAINED,
    ),
    Bug(
        "f does not sum the gradients",
        "comm/cooperative.py",
        'forward, backward = "identity", "all-reduce"',
        'forward, backward = "identity", "identity"',
        BLOCKS,
        way="blocks",
    ),
    Bug(
        "every device adds the bias of a row-parallel layer",
        "models/tensor_parallel/layers.py",
        "(H,) = yield Reduce(H)\n",
        "(H,) = yield Reduce(H)\n    b = b * part.ranks\n",
        LAYERS,
        way="tensor",
    ),
    Bug(
        "the last micro-batch's weight gradients are lost",
        "parallel/executor.py",
        "        for p, dp in zip(params, grads, strict=True):",
        "        for p, dp in zip(params, grads if i.micro < 2 else []):",
        STAGES,
        way="pipeline",
    ),
    Bug(
        "the gradient is divided by the size of a micro-batch",
        "parallel/pipeline.py",
        "step.states[i], lr, n=step.n)",
        "step.states[i], lr, n=len(y[slice(*bounds[0])]))",
        STAGES,
        way="pipeline",
    ),
    Bug(
        "a stage is updated when device s mod p is done, wherever the stage is",
        "parallel/pipeline.py",
        "if ranks[s] == rank:",
        "if s % step.group.size == rank:",
        PLACEMENTS,
        unseen=ERROR,
    ),
    Bug(
        "the updated shards are not all-gathered",
        "parallel/sharded.py",
        "            gather_flat_(flats, group)\n",
        "            pass\n",
        SHARDS,
        way="sharded",
    ),
    Bug(
        "a shard of the gradient is added to the previous step's",
        "parallel/sharded.py",
        "element_count(shard), shard, self.add)",
        "element_count(shard), shard, True)",
        SHARDS,
        way="sharded",
    ),
    Bug(
        "every process trains on rank 0's examples",
        "data/__init__.py",
        "part[slice(*bounds[rank])]",
        "part[slice(*bounds[0])]",
        PROCESSES,
        way="processes",
    ),
    Bug(
        "a bucket is read before its all-reduce is done",
        "parallel/buckets.py",
        "            work.wait()\n            self._unpack(number)",
        "            self._unpack(number)",
        MODULES,
        unseen=RACE,
    ),
    Bug(
        "a part is sent after others were added to it",
        "processes/shared_memory.py",
        "part = part.copy()",
        "part = part",
        ROUND,
        unseen=RACE,
    ),
    Bug(
        "the second half of a shared-memory cell is not copied",
        "processes/shared_memory.py",
        "body[: piece.size] = piece",
        "body[: CELL // 2][: piece.size] = piece[: CELL // 2]",
        SHARED_MEMORY,
        way="processes",
    ),
]
