"""Average weights round a ring; `send` waits until the neighbor receives."""

from queue import Queue
from threading import Thread

import numpy as np

STEPS = 20


class Link:
    """A wire from one rank to the next; as with NCCL, both ends wait for each other."""

    def __init__(self):
        self.message, self.taken = Queue(1), Queue(1)

    def send(self, array):
        self.message.put(array.copy())
        self.taken.get()

    def receive(self):
        array = self.message.get()
        self.taken.put(True)
        return array


def run_rank(rank, workers, links, weights):
    to_next, from_previous = links[rank], links[(rank - 1) % workers]
    for _ in range(STEPS):
        if rank % 2 == 0:
            to_next.send(weights[rank])
            received = from_previous.receive()
        else:
            to_next.send(weights[rank])
            received = from_previous.receive()
        weights[rank] = (weights[rank] + received) / 2


def train(seed, workers=4):
    rng = np.random.default_rng(seed)
    weights = [rng.normal(size=5) for _ in range(workers)]
    links = [Link() for _ in range(workers)]
    ranks = [
        Thread(target=run_rank, args=(r, workers, links, weights), name=f"rank {r}")
        for r in range(workers)
    ]
    for thread in ranks:
        thread.start()
    for thread in ranks:
        thread.join()
    return {"weights": [[w] for w in weights]}


if __name__ == "__main__":
    for (w,) in train(seed=0)["weights"]:
        print(w.round(3))
