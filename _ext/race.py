"""The directive `allreduce-race`: two plans on one modeled clock, and one to break.

Its content is the caption. The page holds the library's plans for 2 to 16 ranks as
data; _extra/race/model.js plays them on the clock of `d2lmulti_cluster` and verifies
them. Without a script there are a picture of one race and a table of times.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import one_step
from interactive import Interactive, rendered
from markupsafe import Markup
from sphinx.application import Sphinx

from d2lmulti.observe.timeline import Timeline
from d2lmulti.plans.allreduce import ALLREDUCE
from d2lmulti.plans.rounds import Plan
from d2lmulti_cluster.clock import play
from d2lmulti_cluster.presets import get_cluster

PLANS = {  # the name alone, and in a sentence
    "star": ("Star", "the star"),
    "tree": ("Tree", "the tree"),
    "ring": ("Ring", "the ring"),
    "recursive_doubling": ("Recursive doubling", "recursive doubling"),
    "halving_doubling": ("Halving-doubling", "halving-doubling"),
    "hierarchical": ("Hierarchical", "the hierarchical plan"),
}
CLUSTERS = {
    "office": ("2x3090-pcie", "10 Gbit/s office, pairs"),
    "pcie": ("p100-pcie", "PCIe boxes of 8 P100"),
    "dgx": ("dgx-h100", "DGX H100, 8 GPUs each"),
}
RANKS = range(2, 17)
SIZES = [n * 10**k for k in range(3, 9) for n in (1, 2, 5)] + [10**9]  # bytes
TABLE = [10**k for k in range(3, 10)]
LANES = {"upper": "Upper plan", "lower": "Lower plan"}
FIRST = {"upper": "tree", "lower": "ring", "cluster": "office"}
FIRST_RANKS, FIRST_SIZE = 8, 10**6
DIGITS = "0123456789abcdefg"


def bound(name: str, per_node: int) -> Plan:
    """Return a plan of (ranks, length) for nodes of `per_node` devices."""
    plan = ALLREDUCE[name]
    return partial(plan, per_node=per_node) if name == "hierarchical" else plan


def key_of(name: str, ranks: int, per_node: int) -> str:
    """Name a plan in the data of the page."""
    return f"{name} {ranks}" + f" {per_node}" * (name == "hierarchical")


def cut(name: str, ranks: int, per_node: int) -> tuple[int, int]:
    """Say into how many parts a plan cuts the vector, and each part into pieces."""
    if name == "ring":
        return ranks, 1
    if name == "halving_doubling":
        return 1 << ranks.bit_length() - 1, 1
    if name == "hierarchical":
        return min(ranks, per_node), -(-ranks // per_node)
    return 1, 1


def written(name: str, ranks: int, per_node: int) -> dict[str, Any]:
    """Write a plan as the script reads it: five characters a message."""
    parts, pieces = cut(name, ranks, per_node)
    rounds = bound(name, per_node)(ranks, parts * pieces)  # a piece: one element
    rows = " ".join(
        "".join(
            "=+"[t.add]
            + "".join(DIGITS[n] for n in (t.source, t.target, t.source_first, t.length))
            for t in this_round
        )
        for this_round in rounds
    )
    return {"parts": parts, "pieces": pieces, "rows": rows}


def data() -> dict[str, Any]:
    """Return all that the script knows."""
    machines = {key: get_cluster(name) for key, (name, _) in CLUSTERS.items()}
    sizes = {cluster.per_node for cluster in machines.values()}
    return {
        "names": {key: title for key, (title, _) in PLANS.items()},
        "said": {key: words for key, (_, words) in PLANS.items()},
        "first": FIRST,
        "sizes": SIZES,
        "table": TABLE,
        "clusters": {
            key: {
                "title": CLUSTERS[key][1],
                "inside": vars(cluster.inside),
                "between": vars(cluster.between),
                "per_node": cluster.per_node,
                "nics": cluster.nics,
            }
            for key, cluster in machines.items()
        },
        "plans": {
            key_of(name, ranks, per_node): written(name, ranks, per_node)
            for name in PLANS
            for ranks in RANKS
            for per_node in sorted(sizes)
        },
    }


def milliseconds(name: str, ranks: int, nbytes: int, cluster: str) -> float:
    """Return what a plan takes on a cluster by the library's clock."""
    machine = get_cluster(CLUSTERS[cluster][0])
    rounds = bound(name, machine.per_node)(ranks, nbytes // 4)
    return 1e3 * play(rounds, machine).seconds


def still(lane: str) -> Markup:
    """Draw one plan of the first race: a line for each message, over time."""
    machine = get_cluster(CLUSTERS[FIRST["cluster"]][0])
    clocks = {part: Timeline() for part in LANES}
    for part, clock in clocks.items():
        rounds = bound(FIRST[part], machine.per_node)(FIRST_RANKS, FIRST_SIZE // 4)
        play(rounds, machine, timeline=clock)
    messages = [  # "rank 3", "1000 bytes to rank 4"
        (int(track.split()[-1]), int(name.split()[-1]), begin, end)
        for track, name, begin, end in clocks[lane].spans
    ]
    end = max(clock.end for clock in clocks.values())
    run = {"devices": FIRST_RANKS, "end": end, "blocks": [], "messages": messages}
    label = f"{PLANS[FIRST[lane]][0]} on {FIRST_RANKS} ranks: messages"
    return one_step.picture(run, label, "rank")


def times(name: str) -> list[str]:
    """Write the times of a plan on the first number of ranks and cluster."""
    found = [milliseconds(name, FIRST_RANKS, n, FIRST["cluster"]) for n in TABLE]
    return [PLANS[name][0], *(f"{float(f'{ms:.3g}'):,.10g}" for ms in found)]


def page(up: str) -> str:
    """Write what stands in the page; `up` leads from it to the book's first folder."""
    return rendered(
        "race.html",
        up=up,
        data=data(),
        ranks=FIRST_RANKS,
        nbytes=FIRST_SIZE,
        stills={lane: still(lane) for lane in LANES},
        times=map(times, PLANS),
        size=size,
    )


def size(nbytes: int) -> str:
    """Write a size: 1 KB, 50 MB."""
    power = (len(str(nbytes)) - 1) // 3
    return f"{nbytes // 1000**power} {('B', 'KB', 'MB', 'GB')[power]}"


class Race(Interactive):
    """A figure in which two all-reduces race."""

    made_from = (one_step,)

    def page(self, up: str) -> str:
        return page(up)


def setup(app: Sphinx) -> dict[str, object]:
    """Register the directive."""
    app.add_directive("allreduce-race", Race)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
