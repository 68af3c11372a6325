"""One call that works of every public function that takes no tensors."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from backends.good_calls import Calls, CollectiveRequest, World, entered

import d2lmulti
from d2lmulti import SGD, Adam, AdamW
from d2lmulti.comm.group import local_group
from d2lmulti.models.mlp import make_mlp
from d2lmulti.parallel.pipeline import cut_stages
from d2lmulti.plans.allreduce import ALLREDUCE, ring
from d2lmulti.plans.pipeline import Backward, Forward
from d2lmulti.plans.placement import PLACEMENTS, shard_to_servers
from d2lmulti.plans.schedules import SCHEDULES


def pure_calls(w: World) -> Calls:
    """Give a call that works of every function that needs no tensors."""
    at = importlib.import_module
    config = d2lmulti.DeploymentConfig(2, backend="numpy")
    lists = SCHEDULES["1f1b"](2, 2)
    order = [[Forward(0, 0), Backward(0, 0)]]
    checkpoint = at("d2lmulti.training.checkpoint")
    rate = at("d2lmulti.training.rate")
    settings = {"model": "mlp", "dataset": "digits", "dtype": "float64"}
    settings |= {"batch_size": 8, "seed": 0, "optimizer": "sgd"}
    settings |= {"data": "digits (0)", "rates": "", "logits": "1.5"}
    saved = checkpoint.Checkpoint(settings, params=[np.ones(2)])
    timeline = d2lmulti.Timeline()
    rounds = list(ring(2, 8))
    history = d2lmulti.ServerHistory("sync", 1)
    launch = at("d2lmulti.processes.launcher").launch
    launch_kvstore = at("d2lmulti.processes.mxnet_servers").launch_kvstore
    X, y = w.data.train_X, w.data.train_y
    found: Calls = {
        "Adam": lambda: (Adam, {}),
        "AdamW": lambda: (AdamW, {}),
        "SGD": lambda: (SGD, {}),
        "Link": lambda: (d2lmulti.Link, {}),
        "Dataset.first": lambda: (w.data.first, {"n": 2}),
        "DeploymentConfig": lambda: (d2lmulti.DeploymentConfig, {}),
        "DeploymentConfig.variables_device": lambda: (config.variables_device, {}),
        "DeploymentConfig.clone_device": lambda: (config.clone_device, {"i": 0}),
        "DeploymentConfig.clone_scope": lambda: (config.clone_scope, {"i": 0}),
        "Ledger.count_round": lambda: (
            d2lmulti.Ledger().count_round, {"this_round": rounds[0], "itemsize": 4},
        ),
        "Ledger.count_plan": lambda: (
            d2lmulti.Ledger().count_plan, {"plan": rounds, "itemsize": 4},
        ),
        "ServerHistory.seconds_to": lambda: (history.seconds_to, {"loss": 0.5}),
        "Timeline": lambda: (d2lmulti.Timeline, {}),
        "timeline": lambda: (entered(d2lmulti.timeline), {}),
        "Timeline.add": lambda: (
            timeline.add, {"track": "a", "name": "b", "begin": -9.0, "end": 1e30},
        ),
        "Timeline.span": lambda: (entered(timeline.span), {"track": "a", "name": "b"}),
        "Timeline.busy": lambda: (timeline.busy, {"track": "a"}),
        "get_model": lambda: (d2lmulti.get_model, {"model": "mlp"}),
        "parallel.experts.expert_capacity": lambda: (
            at("d2lmulti.parallel.experts").expert_capacity,
            {"tokens": 64, "experts": 8, "factor": 1.25},
        ),
        "parallel.sequence.token_positions": lambda: (
            at("d2lmulti.parallel.sequence").token_positions,
            {"length": 8, "ranks": 2},
        ),
        "get_split": lambda: (d2lmulti.get_split, {"model": "mlp"}),
        "load": lambda: (d2lmulti.load, {"name": "digits"}),
        "worker_seconds": lambda: (d2lmulti.worker_seconds, {"workers": 2, "steps": 3}),
        "observe.push_pull.push_pull_events": lambda: (
            at("d2lmulti.observe.push_pull").push_pull_events,
            {"mode": "sync", "seconds": np.ones((2, 4)), "batches": 4},
        ),
        "cluster.overlap.plan_seconds": lambda: (
            at("d2lmulti_cluster.overlap").plan_seconds,
            {
                "rounds": rounds, "itemsize": 4, "start_up": 1e-6,
                "bytes_per_second": 1e9,
            },
        ),
        "cluster.overlap.spans": lambda: (
            at("d2lmulti_cluster.overlap").spans, {"ready": [1.0], "costs": [1.0]},
        ),
        "comm.group.local_group": lambda: (local_group, {"size": 2}),
        "processes.launch": lambda: (launch, {"function": print, "n": 1}),
        "processes.mxnet_servers.launch_kvstore": lambda: (
            launch_kvstore, {"program": "1"},
        ),
        "models.mlp.make_mlp": lambda: (make_mlp, {"name": "a", "widths": (4, 3, 2)}),
        "models.transformer.make_transformer": lambda: (
            at("d2lmulti.models.transformer").make_transformer, {"name": "a"},
        ),
        "parallel.pipeline.cut_stages": lambda: (
            cut_stages, {"model": w.model, "stages": 2},
        ),
        "plans.rounds.even_bounds": lambda: (
            at("d2lmulti.plans.rounds").even_bounds, {"total": 10, "parts": 3},
        ),
        "plans.collectives.broadcast": lambda: (
            at("d2lmulti.plans.collectives").broadcast, {"ranks": 2, "length": 3},
        ),
        "plans.collectives.reduce": lambda: (
            at("d2lmulti.plans.collectives").reduce, {"ranks": 2, "length": 3},
        ),
        "plans.placement.shard_to_servers": lambda: (
            shard_to_servers, {"sizes": [3, 4], "servers": 2},
        ),
        "plans.placement.server_sizes": lambda: (
            at("d2lmulti.plans.placement").server_sizes,
            {"parts": shard_to_servers([3, 4], 2), "servers": 2},
        ),
        "plans.pipeline.stage_ranks": lambda: (
            at("d2lmulti.plans.pipeline").stage_ranks, {"lists": lists},
        ),
        "plans.pipeline.add_transfers": lambda: (
            at("d2lmulti.plans.pipeline").add_transfers, {"order": order},
        ),
        "plans.verify.verify": lambda: (
            at("d2lmulti.plans.verify").verify,
            {"rounds": rounds, "ranks": 2, "length": 8},
        ),
        "plans.pipeline.verify_schedule": lambda: (
            at("d2lmulti.plans.pipeline").verify_schedule,
            {"lists": lists, "stages": 2, "micro_batches": 2},
        ),
        "data.batches.batches": lambda: (
            at("d2lmulti.data.batches").batches,
            {"X": X, "y": y, "batch_size": 4},
        ),
        "training.rate.rate_at": lambda: (rate.rate_at, {"lr": 0.1, "step": 0}),
        "training.rate.scale_linearly": lambda: (
            rate.scale_linearly, {"lr": 0.1, "k": 4},
        ),
        "training.rate.scale_by_root": lambda: (
            rate.scale_by_root, {"lr": 0.1, "k": 4},
        ),
        "training.rate.GradualWarmup": lambda: (
            rate.GradualWarmup, {"start": 0.1, "steps": 4, "then": 0.4},
        ),
        "training.rate.GradualWarmup.rate": lambda: (
            rate.GradualWarmup(0.1, 4, 0.4).rate, {"step": 0},
        ),
        "training.rate.ConstantWarmup": lambda: (
            rate.ConstantWarmup, {"start": 0.1, "steps": 4, "then": 0.4},
        ),
        "training.rate.ConstantWarmup.rate": lambda: (
            rate.ConstantWarmup(0.1, 4, 0.4).rate, {"step": 0},
        ),
        "training.rate.StepDecay": lambda: (
            rate.StepDecay, {"lr": 0.1, "at": (2, 5)},
        ),
        "training.rate.StepDecay.rate": lambda: (
            rate.StepDecay(0.1, (2, 5)).rate, {"step": 0},
        ),
        "training.checkpoint.load_checkpoint": lambda: (
            checkpoint.load_checkpoint, {"path": w.folder / "there.npz"},
        ),
        "training.checkpoint.save_checkpoint": lambda: (
            checkpoint.save_checkpoint,
            {"path": w.folder / "there.npz", "checkpoint": saved},
        ),
        "book.docstrings.docstrings": lambda: (
            at("d2lmulti_book.docstrings").docstrings, {},
        ),
        "files.atomic.write_json": lambda: (
            at("d2lmulti.files.atomic").write_json,
            {"path": w.folder / "file.json", "value": [1]},
        ),
        "book.slow_data.SlowData": lambda: (
            at("d2lmulti_book.slow_data").SlowData, {"examples": 2},
        ),
        "book.slow_data.Stamps": lambda: (
            at("d2lmulti_book.slow_data").Stamps, {"timeline": timeline},
        ),
        "book.slow_data.Stamps.enter": lambda: (
            at("d2lmulti_book.slow_data").Stamps(timeline).enter,
            {"stamps": np.array([[1, timeline.start, timeline.start + 1]])},
        ),
        "data.text.cut_pieces": lambda: (
            at("d2lmulti.data.text").cut_pieces,
            {"text": "a bell " * 30, "length": 4},
        ),
        "backends.register_backend": lambda: (
            at("d2lmulti.backends").register_backend,
            {"name": "numpy", "module": at("d2lmulti.backends.numpy")},
        ),
        "book.by_value.ByValue": lambda: (
            at("d2lmulti_book.by_value").ByValue, {"function": print},
        ),
        "processes.ranks.Ranks": lambda: (
            at("d2lmulti.processes.ranks").Ranks, {"n": 1},
        ),
    }  # fmt: skip
    found |= machine_calls()
    tables: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
        ("ALLREDUCE", ALLREDUCE, {"ranks": 4, "length": 9}),
        ("SCHEDULES", SCHEDULES, {"devices": 2, "micro_batches": 2}),
        ("PLACEMENTS", PLACEMENTS, {"sizes": [3, 4], "servers": 2}),
    ]
    for word, table, call in tables:
        found |= {f"{word}[{key}]": _given(f, call) for key, f in table.items()}
    return found


def _given(
    function: Callable[..., Any], named: dict[str, Any]
) -> Callable[[], CollectiveRequest]:
    return lambda: (function, dict(named))


def machine_calls() -> Calls:
    """The same for machines that are not there."""
    at = importlib.import_module
    hardware = at("d2lmulti_cluster.hardware")
    networks = at("d2lmulti_cluster.networks")
    layout = at("d2lmulti_cluster.layout").Layout
    dgx = at("d2lmulti_cluster.presets").get_cluster("dgx-h100")
    model = networks.get_network("1B")
    rounds = list(ring(2, 8))
    shape = {
        "name": "a", "layers": 2, "hidden": 64, "heads": 4, "ffn": 128,
        "vocabulary": 100, "sequence": 32,
    }  # fmt: skip
    table = Path(__file__).parents[2] / "chapters/measured/gpipe_tables_2_3.csv"
    calls: dict[str, tuple[Any, dict[str, Any]]] = {
        "clock.play": ("play", {"rounds": rounds, "cluster": dgx}),
        "convolution.conv_step": (
            "conv_step",
            {
                "net": networks.get_network("resnet-50"), "gpus": 8,
                "batch_per_gpu": 32, "cluster": dgx,
            },
        ),
        "cost.bus_bandwidth": (
            "bus_bandwidth",
            {"collective": "allreduce", "n": 8, "nbytes": 8, "seconds": 1.0},
        ),
        "cost.formula_seconds": (
            "formula_seconds",
            {"algorithm": "ring", "n": 8, "nbytes": 8, "cluster": dgx},
        ),
        "nccl.nccl_seconds": (
            "nccl_seconds",
            {"collective": "allreduce", "nbytes": 8.0, "n": 8, "cluster": dgx},
        ),
        "hardware.Link": ("Link", {"latency": 1e-6, "bandwidth": 1e9}),
        "hardware.uniform": ("uniform", {"latency": 1e-6, "bandwidth": 1e9}),
        "layout.Layout": ("Layout", {}),
        "networks.Transformer": ("Transformer", shape),
        "networks.get_network": ("get_network", {"name": "1B"}),
        "planner.plan_layouts": (
            "plan_layouts", {"model": model, "cluster": dgx, "gpus": 2},
        ),
        "presets.get_cluster": ("get_cluster", {"name": "dgx-h100"}),
        "step_time.step_time": (
            "step_time", {"model": model, "layout": layout(), "cluster": dgx},
        ),
        "validation.validate.validate": ("validate", {"path": table}),
    }  # fmt: skip
    found = {
        f"cluster.{name}": _given(
            getattr(at(f"d2lmulti_cluster.{name.rpartition('.')[0]}"), function), given
        )
        for name, (function, given) in calls.items()
    }
    link = hardware.Link(1e-6, 1e9)
    small = networks.Transformer(**shape)
    found["Link.seconds"] = _given(link.seconds, {"nbytes": 8})
    found["cluster.networks.Transformer.flops"] = _given(small.flops, {"tokens": 8})
    return found
