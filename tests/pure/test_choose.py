"""What `auto` chooses is within 2 % of the quickest, by the model that it states."""

from d2lmulti.plans.allreduce import ALLREDUCE, START_UP_BYTES, choose_allreduce
from d2lmulti_cluster.cost import plan_seconds


def test_auto_is_all_but_the_quickest_for_any_ranks_and_size():
    start_up = 5e-6
    rate = START_UP_BYTES / start_up
    chosen = set()
    for ranks in range(2, 40):
        for nbytes in (4**k for k in range(16)):
            seconds = {
                name: plan_seconds(plan(ranks, nbytes), 1, start_up, rate)
                for name, plan in ALLREDUCE.items()
                if name != "hierarchical"  # for networks with two kinds of links
            }
            name = choose_allreduce(ranks, nbytes)
            chosen.add(name)
            assert seconds[name] <= 1.02 * min(seconds.values())
    assert chosen == {"ring", "recursive_doubling", "halving_doubling"}
