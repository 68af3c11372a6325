"""A mesh in one process: where ranks are, what moves along an axis, what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from backends.compare import assert_same_bits
from hypothesis import given, settings
from hypothesis import strategies as st

from d2lmulti import allgather, allreduce, broadcast, ledger, reduce_scatter
from d2lmulti.comm.collectives import copy_between
from d2lmulti.comm.group import Group, local_group
from d2lmulti.comm.mesh import AXES, Mesh, split_group
from d2lmulti.errors import InvalidInput
from d2lmulti.processes.horovod import Horovod
from d2lmulti.processes.process_group import ProcessInfo


def sizes_of(axes: int, most: int) -> list[tuple[int, ...]]:
    """All sizes of so many axes with a product of at most `most`."""
    if not axes:
        return [()]
    return [
        (first, *rest)
        for first in range(1, most + 1)
        for rest in sizes_of(axes - 1, most // first)
    ]


SIZES = [sizes for axes in range(1, 6) for sizes in sizes_of(axes, 16)]


@st.composite
def meshes(draw):
    sizes = draw(st.sampled_from(SIZES))
    names = draw(st.permutations(AXES))[: len(sizes)]
    return Mesh(**dict(zip(names, sizes, strict=True)))


@given(meshes())
def test_ranks_and_coordinates_are_one_to_one(mesh):
    places = [mesh.coordinates(rank) for rank in range(mesh.size)]
    assert [mesh.rank(**place) for place in places] == list(range(mesh.size))
    last = [*mesh.axes][-1]
    for rank, place in enumerate(places[:-1]):
        if place[last] < mesh.axes[last] - 1:  # neighbors on the last axis
            assert places[rank + 1] == place | {last: place[last] + 1}
    for axis in AXES:
        lines = mesh.ranks_along(axis)
        assert sorted(r for line in lines for r in line) == list(range(mesh.size))
        for line in lines:
            assert [places[r].get(axis, 0) for r in line] == list(range(len(line)))
            others = [{a: i for a, i in places[r].items() if a != axis} for r in line]
            assert all(other == others[0] for other in others)
        assert [group.ranks for group in mesh.groups(axis)] == lines


@settings(max_examples=10)
@given(meshes(), st.integers(0, 2**32 - 1))
def test_collectives_along_an_axis_are_those_of_numpy(B, mesh, seed):
    rng = np.random.default_rng(seed)
    values = rng.integers(-99, 99, (mesh.size, 5)).astype("float64")
    for axis in mesh.axes:
        lines = mesh.ranks_along(axis)
        line_of = {r: line for line in lines for r in line}
        summed, sent = ([B.array(x) for x in values] for _ in range(2))
        with ledger() as moved:
            nothing = mesh.along(axis, allreduce, summed, algorithm="ring")
        # What moves stays in the axis's own sub-groups, in the mesh's numbers.
        assert all(t in line_of[s] for s, t in moved.links)
        k = mesh.axes[axis]
        assert moved.bytes == len(lines) * 2 * (k - 1) * 5 * 8
        assert nothing == [None] * mesh.size
        joined = mesh.along(axis, allgather, [B.array(x) for x in values])
        parts = mesh.along(axis, reduce_scatter, [B.array(x) for x in values])
        mesh.along(axis, broadcast, sent, root=k - 1)
        for r, line in line_of.items():
            mine = values[list(line)]
            assert (B.numpy(summed[r]) == mine.sum(0)).all()
            assert (B.numpy(joined[r]) == mine.reshape(-1)).all()
            part = np.array_split(mine.sum(0), k)[line.index(r)]
            assert (B.numpy(parts[r]) == part).all()
            assert (B.numpy(sent[r]) == values[line[-1]]).all()


@pytest.mark.parametrize("whole", [True, False])
def test_a_message_between_ranks(B, whole):
    group = (
        local_group(6) if whole else Mesh(pipeline=3, data=2).group_of("pipeline", 3)
    )
    assert whole or group.ranks == (1, 3, 5)
    x = B.array(np.float64([[1, 2, 3]]))
    with ledger() as moved:
        y = copy_between(x, 2, 0, "sim:1", group)
    assert dict(moved.links) == {(2, 0) if whole else (5, 1): 24}
    assert_same_bits(B.numpy(y), B.numpy(x))
    B.write_(y, 0, 1, B.array([5.0]))
    assert B.numpy(x).tolist() == [[1, 2, 3]]
    for ends in ((1, 1), (0, 6)):
        with pytest.raises(InvalidInput, match="two different ranks"):
            copy_between(x, *ends, "sim:0", group)


def test_native_and_mean_in_a_sub_group(B):
    (first,) = split_group([[1, 3]], local_group(4))
    data = [B.array(np.float64([1, 5])), B.array(np.float64([2, 7]))]
    with ledger() as moved:
        allreduce(data, "native", first, op="mean")
    assert [B.numpy(x).tolist() for x in data] == [[1.5, 6], [1.5, 6]]
    assert {*moved.links} == {(1, 3), (3, 1)}


def test_errors_name_axis_and_ranks(B):
    mesh = Mesh(data=2, tensor=2)
    data = [B.array(np.zeros(2 + (rank == 3))) for rank in range(4)]
    with pytest.raises(InvalidInput, match=r"\(2,\).* on rank 0 and \(3,\)"):
        mesh.along("tensor", allreduce, data)
    with pytest.raises(InvalidInput, match="this process's 4 ranks of the mesh, got 3"):
        mesh.along("tensor", allreduce, data[:3])
    with pytest.raises(InvalidInput, match="as axis, got 'depth'"):
        mesh.along("depth", allreduce, data)
    with pytest.raises(InvalidInput, match="coordinate on the axis data, got 2"):
        mesh.rank(data=2)


def test_what_cannot_be_split_is_refused():
    horovod = Horovod(ProcessInfo(0, 2, 0, "horovod", 2))
    with pytest.raises(InvalidInput, match="horovod"):  # it has no sub-groups
        Mesh(Group(2, (0,), horovod), data=2)
    sub_group = Mesh(data=2, tensor=2).groups("data")[0]
    with pytest.raises(InvalidInput, match="ranks 0, 2"):
        split_group([[0, 1]], sub_group)
    with pytest.raises(InvalidInput, match="split the whole"):
        Mesh(sub_group, data=2)
    for parts in ([[1, 0]], [[0, 1], [1, 2]]):  # not ascending, and overlapping
        with pytest.raises(InvalidInput):
            split_group(parts, local_group(4))
