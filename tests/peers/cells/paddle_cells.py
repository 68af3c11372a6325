# What the section's Paddle tab does, cell by cell; `d2l` and the data are given.
# %% set-up
import paddle
from paddle import nn
from paddle.nn import functional as F

# %% parameters
scale, kind = 0.1, {"dtype": "float64"}
W1, b1 = paddle.randn((20, 1, 3, 3), **kind) * scale, paddle.zeros([20], **kind)
W2, b2 = paddle.randn((50, 20, 5, 5), **kind) * scale, paddle.zeros([50], **kind)
W3, b3 = paddle.randn((800, 128), **kind) * scale, paddle.zeros([128], **kind)
W4, b4 = paddle.randn((128, 10), **kind) * scale, paddle.zeros([10], **kind)
params = [W1, b1, W2, b2, W3, b3, W4, b4]


# %% network and loss
def lenet(X, params):
    h1 = F.relu(F.conv2d(x=X, weight=params[0], bias=params[1]))
    h1 = F.avg_pool2d(x=h1, kernel_size=(2, 2), stride=(2, 2))
    h2 = F.relu(F.conv2d(x=h1, weight=params[2], bias=params[3]))
    h2 = F.avg_pool2d(x=h2, kernel_size=(2, 2), stride=(2, 2))
    h3 = F.relu(paddle.mm(h2.reshape([h2.shape[0], -1]), params[4]) + params[5])
    return paddle.mm(h3, params[6]) + params[7]


loss = nn.CrossEntropyLoss(reduction="none")


# %% get_params
def get_params(params, device):
    new_params = [paddle.to_tensor(p, place=device) for p in params]
    for p in new_params:
        p.stop_gradient = False
    return new_params


# %% get_params, called
new_params = get_params(params, d2l.try_gpu(0))
assert new_params[1].shape == [20] and not new_params[1].stop_gradient
assert new_params[1].place._equals(d2l.try_gpu(0))


# %% allreduce
def allreduce(data):
    for i in range(1, len(data)):
        data[0].add_(paddle.to_tensor(data[i], place=data[0].place))
    for i in range(1, len(data)):
        data[i].copy_(data[0], False)


# %% allreduce, called
devices = [d2l.try_gpu(i) for i in range(2)]
data = [
    paddle.to_tensor(paddle.ones([1, 2]) * (i + 1), place=devices[i]) for i in (0, 1)
]
allreduce(data)
assert [x.tolist() for x in data] == [[[3, 3]], [[3, 3]]]


# %% split_batch
def split_batch(X, y, devices):
    assert X.shape[0] == y.shape[0]
    X_shards, y_shards = (
        [
            paddle.to_tensor(part, place=d)
            for part, d in zip(paddle.chunk(x, len(devices)), devices, strict=True)
        ]
        for x in (X, y)
    )
    return X_shards, y_shards


# %% split_batch, called
split, _ = split_batch(paddle.arange(20).reshape([4, 5]), paddle.arange(4), devices)
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
    with paddle.no_grad():
        for i in range(len(device_params[0])):
            allreduce([device_params[c][i].grad for c in range(len(devices))])
    for i in range(len(device_params)):
        device_params[i] = d2l.sgd(device_params[i], lr, X.shape[0])


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
