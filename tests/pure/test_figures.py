"""The figures of the book show what was counted: their numbers, read off the axes."""

from __future__ import annotations

import matplotlib
import numpy as np
import pytest

matplotlib.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.colors import to_hex
from matplotlib.patches import Rectangle

from d2lmulti import devices, get_backend, get_split, split_params
from d2lmulti.comm.mesh import Mesh
from d2lmulti.data import Dataset
from d2lmulti.models import get_model
from d2lmulti.models.networks import Model, initial_mlp, mlp
from d2lmulti.models.transformer import make_transformer
from d2lmulti.observe.pipeline_trace import Durations, PipelineTrace
from d2lmulti.observe.push_pull import worker_seconds
from d2lmulti.observe.timeline import Timeline
from d2lmulti.plans.allreduce import ALLREDUCE, ring, star
from d2lmulti.plans.pipeline import Backward, Forward, SendActivation
from d2lmulti.plans.verify import snapshots
from d2lmulti.training.on_servers import train_on_servers
from d2lmulti_book.figures import servers, splitting, timelines
from d2lmulti_book.figures.attention_blocks import needed_scores
from d2lmulti_book.figures.experts import slots
from d2lmulti_book.figures.layers import who_holds
from d2lmulti_book.figures.meshes import mesh_in_two_nodes
from d2lmulti_book.figures.pipeline import gantt, live_activations
from d2lmulti_book.figures.plans import held_text, plan_states
from d2lmulti_book.figures.style import device_color


@pytest.fixture(autouse=True)
def close_figures():
    yield
    plt.close("all")


def texts(ax):
    return [text.get_text() for text in ax.texts]


def ends_of_rows(ax):
    """Return where the last bar of each row ends."""
    ends: dict[int, float] = {}
    for bar in ax.patches:
        row = round(bar.get_y() + bar.get_height() / 2)
        ends[row] = max(ends.get(row, 0), bar.get_x() + bar.get_width())
    return [ends[row] for row in sorted(ends)]


def test_a_mesh_shows_what_each_rank_holds():
    mesh = Mesh(pipeline=2, data=2, tensor=2)
    (ax,) = mesh_in_two_nodes().axes
    boxes = [patch for patch in ax.patches if isinstance(patch, Rectangle)][2:]
    for rank in range(8):  # a card, then its halves: two stages, and examples
        _, *parts = boxes[7 * rank : 7 * rank + 7]
        held = np.array([to_hex(part.get_facecolor()) != "#ffffff" for part in parts])
        at, right = mesh.coordinates(rank), np.zeros((2, 3), bool)
        right[at["tensor"], at["pipeline"]] = right[at["data"], 2] = True
        assert held.reshape(2, 3).tolist() == right.tolist()


def test_blocks_of_attention_show_the_scores_whose_key_is_not_later():
    (ax,) = needed_scores({"neighbors": np.split(np.arange(6), 3)}).axes
    masks = [image.get_array().astype(int).tolist() for image in ax.images]
    half, none, full = [[1, 0], [1, 1]], [[0, 0]] * 2, [[1, 1]] * 2
    # Rank 0, step by step, then ranks 1 and 2.
    assert masks == [half, none, none, half, full, none, half, full, full]
    assert texts(ax) == ["75", "100", "100"]


def test_tokens_fill_slots_in_their_order_and_the_rest_are_dropped():
    figure = slots([0, 0, 0, 1, 1, 0], experts=2, parts=2, factor=1)
    whole, *parts = [
        [(round(p.get_x()), p.get_y(), to_hex(p.get_facecolor())) for p in ax.patches]
        for ax in figure.axes
    ]
    dropped, empty = "#dddddd", "#ffffff"
    assert [(x, y) for x, y, c in whole if c == dropped] == [(3, 0)]
    assert [(x, y) for x, y, c in whole if c == empty] == [(2, 1)]
    left = [[p[:2] for p in part if p[2] == dropped] for part in parts]
    assert left == [[(2, 0)], []]


def test_every_weight_of_a_split_model_shows_its_shards():
    B, k = get_backend("numpy"), 3
    split = get_split(make_transformer("small", 12, 8, 24, heads=12, blocks=1))
    start = [B.array(p) for p in split.whole.initial(np.random.default_rng(0))]
    (ax,) = who_holds(split, split_params(start, devices(k, "numpy"), split)).axes
    assert texts(ax)[1] == "12 x 24" and texts(ax)[5] == "24 x 72"  # unsharded sizes
    owners = [to_hex(patch.get_facecolor()).upper() for patch in ax.patches]
    one = [device_color(rank) for rank in range(k)]
    everywhere = "#DDDDDD"  # positions; then queries, keys, values
    assert owners == [*one, everywhere, *one * 3, *one * 4]


def test_snapshots_of_a_ring_grow_by_one_rank_per_round():
    edges, frames = snapshots(ring(4, 8), 4, 8)
    assert edges.tolist() == [0, 2, 4, 6, 8] and len(frames) == 7
    assert [frame.sum(axis=2).max() for frame in frames[:4]] == [1, 2, 3, 4]
    assert (frames[-1] == 1).all()
    edges, frames = snapshots(star(3, 12), 3, 12)
    assert edges.tolist() == [0, 12]  # pieces with one fate are one piece
    rows = np.tril(np.ones((5, 5), int))
    assert [held_text(row) for row in rows] == ["0", "01", "012", "0123", "all"]


@pytest.mark.parametrize("name", ALLREDUCE)
def test_the_last_panel_of_a_plan_is_complete(name):
    figure = plan_states(ALLREDUCE[name](5, 10), 5, 10, name)
    panels = [ax for ax in figure.axes if ax.get_title()]
    rounds = [f"round {i + 1}" for i, _ in enumerate(ALLREDUCE[name](5, 10))]
    assert [ax.get_title() for ax in panels] == ["start", *rounds]
    ranks, own = {str(rank) for rank in range(5)}, texts(panels[0])
    assert {*texts(panels[-1])} - ranks == {"all"}
    assert {*own} == ranks and own == sorted(own)  # row by row


def test_servers_have_a_bar_for_every_gradient_and_a_line_for_the_median():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(24, 4)), rng.integers(0, 3, 24)
    model = Model("tiny", lambda rng: initial_mlp(rng, (4, 3)), mlp, mlp)
    history = train_on_servers(
        3, 6, 0.1, mode="async", backend="numpy", model=model,
        dataset=Dataset("noise", X, y, X, y, ("a", "b", "c")),
        seconds=worker_seconds(3, 99, jitter=0.3),
    )  # fmt: skip
    (ax,) = servers.timeline({"free": history}, history.seconds).axes
    *workers, updates = ax.collections
    bars = [path.get_extents() for bars in workers for path in bars.get_paths()]
    times = [push.seconds for push in history.pushes]
    assert sorted(bar.x1 for bar in bars) == pytest.approx(times) and len(times) == 12
    lines = sorted(path.get_extents().x0 for path in updates.get_paths())
    assert lines == pytest.approx(sorted({*times}))
    times, losses = np.array(history.curve).T
    curves = [[(t, factor * loss) for t, loss in history.curve] for factor in (1, 2, 4)]
    (ax,) = servers.loss_over_time({"one": {"free": curves}}, 9, 0.7).axes
    x, median = ax.lines[0].get_data()
    assert x[0] == times[0] and 0 <= times[-1] - x[-1] < 9 / 800
    assert [*median] == [2 * losses[times <= t][-1] for t in x]
    for ax in servers.placements([5, 3, 9], 2).axes:
        assert sum(ends_of_rows(ax)) == 17


def test_bars_are_as_long_as_what_the_devices_hold():
    B = get_backend("numpy")
    lenet = get_model("lenet")
    params = [B.array(p) for p in lenet.initial(np.random.default_rng(0))]
    ways = {"data": [params] * 3, "pipeline": [params[:4], params[4:]]}
    ends = [ends_of_rows(ax) for ax in splitting.held(ways, lenet).axes]
    assert ends == [[129068] * 3, [25250, 103818]]


def test_points_are_what_was_counted_and_lines_the_formula():
    counted = {"data": [7, 7], "pipeline": [3, 12]}
    formula = {"data": lambda n: 7, "pipeline": lambda n: 3 * n}
    line, points = splitting.bytes_by_batch((1, 4), counted, formula).axes[0].lines[2:]
    assert list(points.get_ydata()) == [3, 12]
    assert list(line.get_ydata()[[0, -1]]) == pytest.approx([3, 12])


@pytest.fixture
def record():
    """Two devices, one micro-batch, four stages: nothing ever overlaps."""
    found = PipelineTrace(Durations(forward=1, backward=3))
    found.on_pipeline(2, 4)
    for kind, order in ((Forward, range(4)), (Backward, reversed(range(4)))):
        for stage in order:
            peer, ends = (stage + 1 if kind is Forward else stage - 1), (-1, 4)
            found.on_instruction(stage % 2, kind(stage, 7))
            count = 1 if kind is Forward else 0
            found.on_stored(stage % 2, stage, count, 100 * count)
            if peer not in ends:
                found.on_instruction(stage % 2, SendActivation(stage, 7, peer % 2))
    return found


def test_a_box_for_every_slot_with_its_micro_batch(record):
    figure = gantt({"naive": record, "again": record})
    for ax in figure.axes:
        assert [text.get_text() for text in ax.texts] == ["7"] * 8
        boxes = [path for bars in ax.collections for path in bars.get_paths()]
        widths = [box.get_extents().width for box in boxes]
        widths = sorted([*widths, *(idle.get_width() for idle in ax.patches)])
        # Four forwards and backwards, as many edges of later stages, two idle rows.
        assert widths == sorted([1, 3] * 4 + [1, 3] * 2 + [16] * 2)
        assert [t.get_text() for t in ax.get_yticklabels()] == ["device 0", "device 1"]
    assert "50% idle" in figure.axes[0].get_title(loc="left")


def test_live_activations_step_as_they_were_held(record):
    figure = live_activations({"naive": record})
    assert [ax.get_ylabel() for ax in figure.axes] == ["device 0", "device 1"]
    for ax in figure.axes:
        (area,) = ax.collections
        (path,) = area.get_paths()
        assert path.vertices[:, 1].max() == 2
        assert [text.get_text() for text in ax.texts] == ["at most 2"]
    (area,) = figure.axes[0].collections
    (path,) = area.get_paths()
    held = [path.contains_point((x, 1.5)) for x in (1.9, 2.1, 9.9, 10.1)]
    assert held == [False, True, True, False]  # two micro-batches
    assert record.device_peak_live == [2, 2]
    assert record.device_peak_bytes == [200, 200]


def test_a_picture_has_a_bar_for_every_span_in_its_part():
    one, two = Timeline(), Timeline()
    one.add("device", "compute", 0.0, 0.1)
    one.add("device", "wait", 0.1, 0.3)
    one.add("worker", "load", 0.0, 0.2)
    two.add("device", "compute", 0.5, 0.6)
    figure = timelines.timelines({"one": one, "two": two}, end=0.4)
    bars = [
        tuple(round(number) for number in path.get_extents().bounds[::2])
        for ax in figure.axes
        for collection in ax.collections
        for path in collection.get_paths()
    ]
    assert sorted(bars) == [(0, 100), (0, 200), (100, 200)]
    assert figure.axes[0].get_yticklabels()[1].get_text() == "worker"
    assert figure.axes[1].get_xlabel() == "ms"
    (legend,) = figure.legends
    shown = zip(legend.get_texts(), legend.get_patches(), strict=True)
    colors = {text.get_text(): patch.get_facecolor() for text, patch in shown}
    assert len(set(colors.values())) == len(colors) == 3
    assert min(colors["wait"][:3]) > 0.8  # pale: nothing happens there
