"""The public names that are not tried with nonsense, and why; see `bad_values.py`."""

from __future__ import annotations

# Public names that are not tried, and why.
LEFT_OUT: dict[str, str] = {
    "d2lmulti.History": "filled by train",
    "d2lmulti.ServerHistory": "filled by train_on_servers",
    "d2lmulti.Ledger": "filled by what moves",
    "d2lmulti.Dataset": "checked where it is used: see test_refused_data.py",
    "d2lmulti.track_devices": "stays on: see test_tracking.py",
    "d2lmulti.Device": "parsed where it is used",
    "d2lmulti.training.strategy.Batch": "checked where it is used",
    "d2lmulti.backends.protocol.Backend": "a description",
    "d2lmulti.errors.D2LMultiError": "an error",
    "d2lmulti.cli.main": "see bad_options.py",
    "d2lmulti.processes.spawn.state_of": "asks the system about any number",
    "d2lmulti.observe.pipeline_record.PipelineRecord": "filled by train_stages",
    "d2lmulti.observe.pipeline_record.Durations": "checked by add_transfers",
    "d2lmulti.models.mlp.mlp": "a model's forward pass: its errors are explained",
    "d2lmulti.models.model.run_layers": "inside a model",
    "d2lmulti.models.tensor_parallel.split.RankInfo": "inside a model",
    "d2lmulti.models.tensor_parallel.split.run_split": "inside a model",
    "d2lmulti.models.transformer.attention": "inside a model",
    "d2lmulti.parallel.experts.expert_layer": "inside a model",
    "d2lmulti.comm.cooperative.run_cooperatively": "takes a model's own calls",
    "d2lmulti.plans.collectives.ring_allgather": "arrays inside a plan: see verify",
    "d2lmulti.plans.collectives.ring_reduce_scatter": "arrays inside a plan",
    "d2lmulti.plans.rounds.make_round": "arrays inside a plan: see verify",
    "d2lmulti.plans.allreduce.together": "plans inside a plan: see verify",
}
FOR_PICTURES = ("d2lmulti_book.figures", "d2lmulti_book.notebook")
A_CALL_OR_INSTRUCTION = (
    "d2lmulti.plans.requests",
    "d2lmulti.plans.pipeline",
)
