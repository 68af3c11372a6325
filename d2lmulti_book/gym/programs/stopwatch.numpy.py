"""Time a training step on simulated GPUs: how much faster are more of them?"""

STEPS, COMPUTE, ALLREDUCE, LAUNCH = 20, 0.080, 0.004, 0.00001  # seconds


class Host:
    """The clock of a program whose GPUs work on while it continues.

    As in CUDA, a launch only queues work on a GPU and returns. Time is modeled.
    """

    def __init__(self, gpus):
        self.now, self.free_at = 0.0, [0.0] * gpus

    def launch(self, gpu, seconds):
        self.now += LAUNCH
        self.free_at[gpu] = max(self.free_at[gpu], self.now) + seconds

    def synchronize(self, gpu):
        self.now = max(self.now, self.free_at[gpu])


def train_step(host, gpus):
    for gpu in range(gpus):
        host.launch(gpu, COMPUTE / gpus)
    meet = max(host.free_at)  # the all-reduce starts when the last one is ready
    for gpu in range(gpus):
        host.free_at[gpu] = meet
        host.launch(gpu, ALLREDUCE * (gpus > 1))


def seconds_per_step(gpus):
    host = Host(gpus)
    train_step(host, gpus)  # the first step is slower on real GPUs: not timed
    for gpu in range(gpus):
        host.synchronize(gpu)
    start = host.now
    for _ in range(STEPS):
        train_step(host, gpus)
    return (host.now - start) / STEPS


def train(seed, workers=4):
    return {"seconds": [seconds_per_step(gpus) for gpus in range(1, workers + 1)]}


if __name__ == "__main__":
    for gpus, seconds in enumerate(train(seed=0)["seconds"], start=1):
        print(f"{gpus} GPUs: {1000 * seconds:.2f} ms per step")
