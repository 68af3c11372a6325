# What the section's PyTorch tab does, cell by cell; `d2l` and the data are given.
# %% set-up
import torch
from torch import nn
from torch.nn import functional as F

# %% parameters
scale, kind = 0.1, {"dtype": torch.float64}
W1, b1 = torch.randn((20, 1, 3, 3), **kind) * scale, torch.zeros(20, **kind)
W2, b2 = torch.randn((50, 20, 5, 5), **kind) * scale, torch.zeros(50, **kind)
W3, b3 = torch.randn((800, 128), **kind) * scale, torch.zeros(128, **kind)
W4, b4 = torch.randn((128, 10), **kind) * scale, torch.zeros(10, **kind)
params = [W1, b1, W2, b2, W3, b3, W4, b4]


# %% network and loss
def lenet(X, params):
    h1 = F.relu(F.conv2d(input=X, weight=params[0], bias=params[1]))
    h1 = F.avg_pool2d(input=h1, kernel_size=(2, 2), stride=(2, 2))
    h2 = F.relu(F.conv2d(input=h1, weight=params[2], bias=params[3]))
    h2 = F.avg_pool2d(input=h2, kernel_size=(2, 2), stride=(2, 2))
    h3 = F.relu(torch.mm(h2.reshape(h2.shape[0], -1), params[4]) + params[5])
    return torch.mm(h3, params[6]) + params[7]


loss = nn.CrossEntropyLoss(reduction="none")


# %% get_params
def get_params(params, device):
    new_params = [p.to(device) for p in params]
    for p in new_params:
        p.requires_grad_()
    return new_params


# %% get_params, called
new_params = get_params(params, d2l.try_gpu(0))
assert new_params[1].shape == (20,) and new_params[1].device == d2l.try_gpu(0)
assert new_params[1].grad is None or not new_params[1].grad.any()


# %% allreduce
def allreduce(data):
    for i in range(1, len(data)):
        data[0][:] += data[i].to(data[0].device)
    for i in range(1, len(data)):
        data[i][:] = data[0].to(data[i].device)


# %% allreduce, called
data = [torch.ones((1, 2), device=d2l.try_gpu(i)) * (i + 1) for i in range(2)]
allreduce(data)
assert [x.tolist() for x in data] == [[[3, 3]], [[3, 3]]]


# %% split_batch
def split_batch(X, y, devices):
    assert X.shape[0] == y.shape[0]
    shards = [
        [part.to(d) for part, d in zip(x.chunk(len(devices)), devices, strict=True)]
        for x in (X, y)
    ]
    return shards[0], shards[1]


# %% split_batch, called
devices = [d2l.try_gpu(i) for i in range(2)]
split, _ = split_batch(torch.arange(20).reshape(4, 5), torch.arange(4), devices)
assert [x.tolist() for x in split] == [
    [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]],
    [[10, 11, 12, 13, 14], [15, 16, 17, 18, 19]],
]


# %% train_batch
def train_batch(X, y, device_params, devices, lr):
    X_shards, y_shards = split_batch(X, y, devices)
    ls = [
        loss(lenet(X_shard, device_W), y_shard).sum()
        for X_shard, y_shard, device_W in zip(
            X_shards, y_shards, device_params, strict=True
        )
    ]
    for one_loss in ls:
        one_loss.backward()
    with torch.no_grad():
        for i in range(len(device_params[0])):
            allreduce([device_params[c][i].grad for c in range(len(devices))])
    for param in device_params:
        d2l.sgd(param, lr, X.shape[0])


# %% train
def train(num_gpus, batch_size, lr):
    train_iter, test_iter = d2l.load_data_fashion_mnist(batch_size)
    devices = [d2l.try_gpu(i) for i in range(num_gpus)]
    device_params = [get_params(params, d) for d in devices]
    for _ in range(2):
        for X, y in train_iter:
            train_batch(X, y, device_params, devices, lr)
    accuracy = d2l.evaluate_accuracy_gpu(
        lambda x: lenet(x, device_params[0]), test_iter, devices[0]
    )
    return accuracy, device_params


# %% train, on one device and on two
one = train(num_gpus=1, batch_size=64, lr=0.2)
two = train(num_gpus=2, batch_size=64, lr=0.2)
