"""What the pictures of a pipeline show, read off their axes."""

import matplotlib.pyplot as plt
import pytest

from d2lmulti.observe.pipeline_trace import Durations, PipelineTrace
from d2lmulti.plans.pipeline import Backward, Forward, SendActivation
from d2lmulti_book.figures.pipeline import gantt, live_activations


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
    assert "50 % idle" in figure.axes[0].get_title(loc="left")
    plt.close(figure)


def test_live_activations_step_as_they_were_held(record):
    figure = live_activations({"naive": record})
    assert [ax.get_ylabel() for ax in figure.axes] == ["device 0", "device 1"]
    for ax in figure.axes:
        (area,) = ax.collections
        (path,) = area.get_paths()
        assert path.vertices[:, 1].max() == 2
        assert [text.get_text() for text in ax.texts] == ["at most 2"]
    (area,) = figure.axes[0].collections
    assert {2, 10, 16} <= {x for x, _ in area.get_paths()[0].vertices}
    plt.close(figure)
