"""Seeded bugs: patches to the library that its ordinary tests must notice.

Each names the tests that were written against it, or against what it breaks alone;
those do not count. `old` must stand in `file` exactly once.
"""

from __future__ import annotations

from typing import NamedTuple


class Bug(NamedTuple):
    """One mistake that is easily made: in `file`, `old` becomes `new`."""

    name: str
    file: str
    old: str
    new: str
    written_for: tuple[str, ...] = ()
    suite: tuple[str, ...] = ("test_data_parallel.py", "test_training.py")


LAYERS = ("test_layer_parallel.py",)
STAGES = ("test_pipeline.py",)
PROCESSES = ("../processes/test_shared_memory.py",)
SHARDS = ("test_sharded.py",)
ENGINES = ("../processes/test_engines.py",)
TOKENS = ("test_sequence.py", "test_experts.py")

BUGS = [
    Bug(
        "the gradient is not divided by n",
        "optimizers/sgd.py",
        "v = B.grad(p) / n",
        "v = B.grad(p)",
    ),
    Bug(
        "the gradient is divided by the shard's length",
        "parallel/data.py",
        "lr, n=element_count(y) if n is None else n)",
        "lr, n=element_count(y_shards[0]))",
    ),
    Bug(
        "mean of the shards' means",
        "parallel/data.py",
        "losses_of(B, out, y_shard).sum()",
        "losses_of(B, out, y_shard).sum() / len(y_shard) * len(X) / len(devices)",
    ),
    Bug(
        "all-reduce sums into a tensor that nobody has",
        "comm/group.py",
        "merge(part, source, out=part)",
        "merge(part, source)",
    ),
    Bug(
        "copy_to gives back its argument",
        "backends/pytorch.py",
        "native(device), copy=True, memory_format=torch.contiguous_format",
        "native(device)",
        ("test_replicas_do_not_share_storage",),
    ),
    Bug(
        "get_params copies only between places",
        "parallel/data.py",
        "copies = [load(p, device) for p in params]",
        "copies = [backend_of(p).detach(p) for p in params]",
        ("test_replicas_do_not_share_storage",),
    ),
    Bug(
        "the star forgets to add the last rank",
        "plans/allreduce.py",
        "yield make_round(others, 0, 0, length, add=True)",
        "yield make_round(others[: max(1, ranks - 2)], 0, 0, length, add=True)",
        ("test_bytes_of_a_step_equal_the_formula",),
    ),
    Bug(
        "the star sends the sum back to rank 1 only",
        "plans/allreduce.py",
        "yield make_round(0, others, 0, length, add=False)",
        "yield make_round(0, others[:1], 0, length, add=False)",
        ("test_bytes_of_a_step_equal_the_formula",),
    ),
    Bug(
        "the last parameter's gradient is not all-reduced",
        "parallel/data.py",
        "for same_parameter in zip(*trained, strict=True):",
        "for same_parameter in list(zip(*trained, strict=True))[:-1]:",
        ("test_bytes_of_a_step_equal_the_formula",),
    ),
    Bug(
        "what does not divide evenly is dropped",
        "plans/rounds.py",
        "return i * size + np.minimum(i, longer)",
        "return i * size",
    ),
    Bug(
        "labels are dealt out in another order than images",
        "parallel/data.py",
        "zip(logits, y_shards, strict=True)",
        "zip(logits, [*y_shards[1:], y_shards[0]], strict=True)",
    ),
    Bug(
        "gradients are never cleared",
        "parallel/data.py",
        "            B.clear_grad_(p)\n",
        "            pass\n",
        ("test_gradients_do_not_pile_up_over_steps",),
    ),
    Bug(
        "synchronised batch norm uses the shard's own statistics",
        "models/batch_norm.py",
        "together=together(lenet_sync_bn, _BUFFERS)",
        "together=None",
        ("test_moving_statistics_of_synchronised_replicas",),
    ),
    Bug(
        "the gradient of a cut is not summed",
        "comm/cooperative.py",
        'dys += self._carry(call.backward, grads, call, "backward")',
        "dys += grads",
    ),
    Bug(
        "a stale bucket: the sum is not written back",
        "parallel/buckets.py",
        "                    self._unflatten_(flat, params, row)\n",
        "                    pass\n",
    ),
    Bug(
        "the last bucket never leaves",
        "parallel/buckets.py",
        "while self.next < len(self.buckets) and",
        "while self.next < len(self.buckets) - 1 and",
    ),
    Bug(
        "all replicas share one velocity",
        "training/strategy.py",
        "[optimizer.start(mine) for mine in self.trained()]",
        "[optimizer.start(self.trained()[0])] * len(self.owned)",
    ),
    Bug(
        "the momentum is forgotten",
        "optimizers/__init__.py",
        "return SGD(0.9 if momentum is None else momentum)",
        "return SGD()",
    ),
    Bug(
        "evaluation looks at replica 0 only",
        "training/evaluate.py",
        "model.predict(B, device_params[i], part)",
        "model.predict(B, device_params[0], part)",
        ("test_a_replica_that_went_astray_lowers_the_accuracy",),
    ),
    Bug(
        "the loss is averaged over batches",
        "training/loop.py",
        "loss = at.loss / data.train_y.size",
        "loss = at.loss / (batch_size * batch_count(n, batch_size))",
        ("test_the_loss_is_the_mean_over_all_examples",),
    ),
    Bug(
        "every epoch has the same order",
        "data/batches.py",
        "np.random.default_rng([seed, epoch])",
        "np.random.default_rng([seed, 0])",
    ),
    Bug(
        "the short last batch is dropped",
        "data/batches.py",
        "return -(-n // batch_size)  # rounded up",
        "return n // batch_size",
        ("test_the_loss_is_the_mean_over_all_examples",),
    ),
    Bug(
        "the initial weights ignore the seed",
        "training/loop.py",
        "model.initial(np.random.default_rng(seed))",
        "model.initial(np.random.default_rng())",
        ("test_the_same_seed_gives_the_same_bits",),
    ),
    Bug(
        "f forgets to sum the gradients",
        "plans/requests.py",
        'forward, backward = "identity", "all-reduce"',
        'forward, backward = "identity", "identity"',
        suite=LAYERS,
    ),
    Bug(
        "every device adds the bias of a layer split by inputs",
        "models/tensor_parallel/layers.py",
        "(H,) = yield Leave(linear(B, X, W))\n    H = _add_bias(H, b)",
        "(H,) = yield Leave(_add_bias(linear(B, X, W), b))",
        suite=LAYERS,
    ),
    Bug(
        "each device keeps the gradient of its own tokens",
        "parallel/tensor.py",
        "if cut.summed:",
        "if cut.summed and group.size == 1:",
        suite=LAYERS,
    ),
    Bug(
        "the last micro-batch's weight gradients are lost",
        "parallel/pipeline/executor.py",
        "        for p, dp in zip(params, grads, strict=True):",
        "        for p, dp in zip(params, grads if i.micro < 2 else []):",
        suite=STAGES,
    ),
    Bug(
        "the gradient is divided by a micro-batch's length",
        "parallel/pipeline/training.py",
        "states[i], lr, n=element_count(y))",
        "states[i], lr, n=element_count(y[slice(*batch.bounds[0])]))",
        suite=STAGES,
    ),
    Bug(
        "a stage is updated when device s mod p is done, wherever it lies",
        "parallel/pipeline/training.py",
        "if ranks[s] == device:",
        "if s % group.size == device:",
        suite=("test_placements.py",),
    ),
    Bug(
        "the updated parts are not gathered",
        "parallel/sharded/training.py",
        "zip(sharded, gather(parts, group), strict=True):",
        "zip(sharded, []):",
        suite=SHARDS,
    ),
    Bug(
        "a part of the gradient is added to that of the step before",
        "parallel/sharded/training.py",
        "B.write_(mine[l], 0, element_count(part), part)",
        "B.write_(mine[l], 0, element_count(part), part, add=True)",
        suite=SHARDS,
    ),
    Bug(
        "every process trains on the first one's examples",
        "data/batches.py",
        "part[slice(*bounds[rank])]",
        "part[slice(*bounds[0])]",
        suite=ENGINES,
    ),
    Bug(
        "a bucket is given back before the engine has summed it",
        "parallel/buckets.py",
        "            work.wait()\n            if not alone",
        "            if not alone",
        suite=ENGINES,
    ),
    Bug(
        "a part is sent after others have been added to it",
        "comm/engines/shared_memory/__init__.py",
        "part = part.copy()",
        "part = part",
        suite=PROCESSES,
    ),
    Bug(
        "the last rank's slot is not added",
        "comm/engines/shared_memory/staging.py",
        "for slot in slots[2:]:",
        "for slot in slots[2:-1]:",
        suite=PROCESSES,
    ),
    Bug(
        "the online softmax forgets to scale down what it has",
        "parallel/sequence/blocks.py",
        "fade = B.exp(so_far[0] - top)",
        "fade = 1.0",
        suite=TOKENS,
    ),
    Bug(
        "keys and values go round the wrong way",
        "parallel/sequence/ring.py",
        "rank, (rank + 1) % n, first",
        "rank, (rank - 1) % n, first",
        suite=TOKENS,
    ),
    Bug(
        "the gradients of tokens stay with the experts",
        "plans/requests.py",
        'forward, backward = "all-to-all", "all-to-all"',
        'forward, backward = "all-to-all", "identity"',
        suite=TOKENS,
    ),
]
