"""The model of a training step: what must hold whatever the constants are."""

from __future__ import annotations

import dataclasses
from itertools import pairwise

import pytest

from d2lmulti.errors import InvalidInput
from d2lmulti.observe.link import Link
from d2lmulti_cluster.convolution import conv_step, pipeline_rate
from d2lmulti_cluster.cost import bus_bandwidth
from d2lmulti_cluster.layer_time import matmul_seconds
from d2lmulti_cluster.layout import ImpossibleLayout, Layout, buckets, cut_layers
from d2lmulti_cluster.nccl import concurrent, nccl_seconds
from d2lmulti_cluster.networks import (
    CONVNETS,
    MEGATRON_2021,
    NANOTRON,
    TRANSFORMERS,
    get_network,
)
from d2lmulti_cluster.planner import layouts, plan_data_parallel, plan_layouts
from d2lmulti_cluster.presets import CLUSTERS, DEVICES, find_device, get_cluster
from d2lmulti_cluster.simulate import count_messages, parse_bytes, simulate
from d2lmulti_cluster.step_time import step_time

H100 = get_cluster("dgx-h100")
BASE = Layout(data=4, tensor=2, pipeline=2, micro_batch=2, micro_batches=8, zero=1)


def test_parameters_are_those_of_the_papers():
    for name, billions in (("gpt3-175b", 175), ("llama3-8b", 8.03), ("1B", 1.34),
                           ("llama3-70b", 70.6), ("gpt2-xl", 1.56)):  # fmt: skip
        assert TRANSFORMERS[name].parameters / 1e9 == pytest.approx(billions, rel=0.01)


def test_a_product_never_beats_the_peak_and_never_shrinks():
    device = DEVICES["H100"]
    sizes = [64, 128, 500, 1000, 2048, 4096, 8192, 16384]
    times = [matmul_seconds(device, n, n, n) for n in sizes]
    assert times == sorted(times)
    for n, seconds in zip(sizes, times, strict=True):
        assert 2 * n**3 / seconds < device.flops * device.matmul_share
    # One tile more than a full wave costs as much as another wave.
    full = 128 * device.units
    assert matmul_seconds(device, full + 1, 256, 8192) > 1.5 * matmul_seconds(
        device, full, 256, 8192
    )


def test_collectives_grow_with_bytes_and_ranks():
    for cluster in CLUSTERS.values():
        for collective in ("allreduce", "allgather", "reduce_scatter"):
            sizes = [nccl_seconds(collective, 4**k, 8, cluster, 2) for k in range(16)]
            assert sizes == sorted(sizes), cluster
        ranks = (1, 2, 4, 8, 64)
        rings = [nccl_seconds("allgather", 1e8, n, cluster, 2) for n in ranks]
        assert rings == sorted(rings) and rings[0] == 0.0, cluster


def test_an_algorithm_can_be_chosen_and_the_tuner_chooses_one_of_them():
    for n in (8, 16, 64, 512, 16384):
        for size in (1e3, 1e6, 1e8):
            both = [
                nccl_seconds("allreduce", size, n, H100, algorithm=name)
                for name in ("ring", "tree")
            ]
            assert nccl_seconds("allreduce", size, n, H100) in both
    ring, tree = both
    assert ring > 50 * tree  # 100 MB on 16,384 GPUs: rounds count, not bytes
    with pytest.raises(InvalidInput, match="as algorithm, got 'tree'"):
        nccl_seconds("allgather", 1e6, 8, H100, algorithm="tree")


def test_what_runs_beside_a_collective_is_slowed_but_not_summed():
    assert concurrent(1.0, 0.0, H100) == 1.0
    assert 1.0 < concurrent(1.0, 0.5, H100) < 1.5
    assert concurrent(0.1, 5.0, H100) == 5.0


def test_a_step_is_its_parts_and_a_faster_machine_is_not_slower():
    step = step_time(get_network("3B"), BASE, H100)
    parts = step.stages + step.gradients + step.optimizer
    assert step.seconds == pytest.approx(parts)
    assert 0.1 < step.utilization < 0.7
    for change in ({"flops": 2e15}, {"memory_bandwidth": 7e12}):
        device = dataclasses.replace(H100.device, **change)
        faster = dataclasses.replace(H100, device=device)
        assert step_time(get_network("3B"), BASE, faster).seconds < step.seconds


def test_more_micro_batches_shrink_the_bubble_and_recomputation_costs_time():
    model = get_network("3B")
    speeds = [
        step_time(model, dataclasses.replace(BASE, micro_batches=m), H100)
        for m in (2, 4, 8, 32)
    ]
    for slower, quicker in pairwise(speeds):
        assert quicker.tokens_per_gpu > slower.tokens_per_gpu
    again = dataclasses.replace(BASE, recompute="full")
    plain, full = step_time(model, BASE, H100), step_time(model, again, H100)
    assert full.seconds > plain.seconds
    assert full.memory.needed < plain.memory.needed


def test_tensor_parallelism_halves_the_memory():
    model = get_network("3B")
    one = Layout(data=8, micro_batch=1, micro_batches=4)
    plain = step_time(model, one, H100).memory
    halves = step_time(model, dataclasses.replace(one, tensor=2), H100).memory
    assert halves.states == pytest.approx(plain.states / 2)
    assert halves.activations == pytest.approx(plain.activations / 2)


def test_each_stage_of_zero_shares_out_what_it_says():
    """Weights 2, gradients 4, Adam 12 bytes; concurrent them pieces that are whole."""
    model, d = get_network("llama3-8b"), 16
    steps = [
        step_time(model, Layout(d, micro_batches=8, zero=z), H100) for z in range(4)
    ]
    states = [step.memory.states / model.parameters for step in steps]
    piece = model.embedding_parameters / model.parameters  # the largest
    assert states[0] == pytest.approx(18)
    assert states[1] == pytest.approx(6 + 12 / d)
    assert states[2] == pytest.approx(2 + 16 / d + 2 * piece)
    assert states[3] == pytest.approx(18 / d + 6 * piece)
    # Gradients of every micro-batch, and weights for every pass, are what they cost.
    assert steps[2].gradients < steps[1].gradients and steps[3].gradients == 0
    link, hops = Link(bandwidth=1e9), (0.0, 0.0, 0.0)
    slow = dataclasses.replace(
        H100, inside=link, between=link, hops=hops, tree_hops=None
    )
    one, two, three = (
        step_time(model, Layout(d, micro_batches=8, zero=z), slow).seconds
        for z in (1, 2, 3)
    )
    # A byte of each weight, round the ring.
    share = (d - 1) / d * model.parameters / 1e9
    assert one == pytest.approx((4 + 2) * share, rel=0.5)
    assert two == pytest.approx((8 * 4 + 2) * share, rel=0.1)
    assert three == pytest.approx(8 * (4 + 2 + 2) * share, rel=0.1)
    alone = [step_time(model, Layout(zero=z), H100) for z in range(4)]
    assert len({step.seconds for step in alone}) == 1


def test_buckets_hold_whole_tensors_and_all_of_them():
    model = get_network("3B")
    stage = cut_layers(model, Layout(data=2), NANOTRON)[0]
    sizes = buckets(model, Layout(data=2), stage, model.parameters, 25 * 2**20)
    assert sum(sizes) == model.parameters
    # Down, gate and up, then the attention's two: three a layer, and the embedding.
    assert len(sizes) == 3 * model.layers + 1
    assert sizes[0] == model.ffn * model.hidden
    assert sizes[-1] == model.embedding_parameters
    assert min(sizes) * 2 >= 25 * 2**20
    assert buckets(model, Layout(data=2), stage, 5.0, None) == [5.0]


def test_layers_are_dealt_out_completely():
    for name in ("1B", "3B", "8B"):
        model = get_network(name)
        for p in (1, 2, 3, 8, 16):
            for software in (NANOTRON, MEGATRON_2021):
                stages = cut_layers(model, Layout(pipeline=p), software)
                assert len(stages) == p
                assert sum(s.layers for s in stages) == pytest.approx(model.layers)
                assert sum(s.head for s in stages) == 1
    with pytest.raises(ImpossibleLayout, match="at most one stage"):
        cut_layers(get_network("1B"), Layout(pipeline=64), NANOTRON)


def test_the_planner_ranks_what_fits_and_keeps_the_rest():
    found = plan_layouts(get_network("3B"), H100, 16)
    assert {c.layout for c in found} == set(layouts(get_network("3B"), 16, 256, 8))
    fit = [c for c in found if c.fits]
    assert found[: len(fit)] == fit and 0 < len(fit) < len(found)
    speeds = [c.step.tokens_per_gpu for c in fit]
    assert speeds == sorted(speeds, reverse=True)
    for c in found:
        assert c.layout.gpus == 16 and c.layout.batch == 256
        assert c.fits == (c.step.memory.needed <= 80e9)
    with pytest.raises(InvalidInput, match="a multiple of 4096"):
        plan_layouts(get_network("1B"), H100, 4096, batch=3)


def test_a_convolutional_network_scales_less_well_on_a_slow_network():
    net = CONVNETS["resnet-50"]
    steps = plan_data_parallel(net, get_cluster("p3.16xlarge"), 64)
    assert [s.images for s in steps] == [32 * n for n in (1, 2, 4, 8, 16, 32, 64)]
    each = [s.images_per_second / s.images for s in steps]
    assert each == sorted(each, reverse=True)
    assert each[4] < 0.7 * each[3]  # from one node to two
    fast = conv_step(net, 64, 32, get_cluster("dgx-a100"))
    assert fast.exposed / fast.compute < steps[-1].exposed / steps[-1].compute


def test_a_pipeline_with_all_kept_has_only_the_bubble():
    assert pipeline_rate(4, 12, kept=12) == pytest.approx(4 * 12 / 15)
    assert pipeline_rate(1, 2, kept=1) == pytest.approx(3 / 3.5)


def test_messages_are_counted_before_they_are_played():
    for ranks in (3, 8, 12, 20):
        for collective in ("reduce_scatter", "allgather", "alltoall", "allreduce"):
            played = simulate(collective, ranks, 4 * 100 * ranks, H100).messages
            assert count_messages(collective, ranks, H100) == played
    played = simulate("allreduce", 8, 4000, H100, "hierarchical").messages
    assert count_messages("allreduce", 8, H100, "hierarchical") == played


def test_simulate_sets_clock_and_formula_side_by_side():
    found = simulate("allreduce", 64, 64_000, H100, "ring")
    assert found.seconds == pytest.approx(found.formula_seconds, rel=1e-3)
    bus = bus_bandwidth("allreduce", 64, 64_000, found.seconds)
    assert found.bus_bandwidth == bus
    assert found.messages == 64 * 126
    assert simulate("allreduce", 12, 4800, H100, "hierarchical").formula_seconds is None


def test_sizes_and_devices_are_read_as_commands_and_tables_write_them():
    assert [parse_bytes(t) for t in ("4096", "64KiB", "1.5 gb")] == [
        4096, 65536, 1_500_000_000,
    ]  # fmt: skip
    assert find_device("8xA100-SXM4-40GB").name == "A100"
    assert find_device("DGX-1 (V100)").name == "V100"
    with pytest.raises(InvalidInput):
        find_device("TI-84")
