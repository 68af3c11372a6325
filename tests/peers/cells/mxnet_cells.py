# What the section's MXNet tab does, cell by cell; `d2l` and the data are given.
# %% set-up
from mxnet import autograd, gluon, np, npx

# %% parameters
scale, kind = 0.1, "float64"
W1 = np.random.normal(scale=scale, size=(20, 1, 3, 3)).astype(kind)
W2 = np.random.normal(scale=scale, size=(50, 20, 5, 5)).astype(kind)
W3 = np.random.normal(scale=scale, size=(800, 128)).astype(kind)
W4 = np.random.normal(scale=scale, size=(128, 10)).astype(kind)
b1, b2, b3, b4 = (np.zeros(n, dtype=kind) for n in (20, 50, 128, 10))
params = [W1, b1, W2, b2, W3, b3, W4, b4]


# %% network and loss
def lenet(X, params):
    h = npx.convolution(
        data=X, weight=params[0], bias=params[1], kernel=(3, 3), num_filter=20
    )
    h = npx.pooling(npx.relu(h), pool_type="avg", kernel=(2, 2), stride=(2, 2))
    h = npx.convolution(
        data=h, weight=params[2], bias=params[3], kernel=(5, 5), num_filter=50
    )
    h = npx.pooling(npx.relu(h), pool_type="avg", kernel=(2, 2), stride=(2, 2))
    h = npx.relu(np.dot(h.reshape(h.shape[0], -1), params[4]) + params[5])
    return np.dot(h, params[6]) + params[7]


loss = gluon.loss.SoftmaxCrossEntropyLoss()


# %% get_params
def get_params(params, device):
    new_params = [p.copyto(device) for p in params]
    for p in new_params:
        p.attach_grad()
    return new_params


# %% get_params, called
new_params = get_params(params, d2l.try_gpu(0))
assert new_params[1].shape == (20,) and new_params[1].ctx == d2l.try_gpu(0)
assert not new_params[1].grad.any()


# %% allreduce
def allreduce(data):
    for i in range(1, len(data)):
        data[0][:] += data[i].copyto(data[0].ctx)
    for i in range(1, len(data)):
        data[0].copyto(data[i])


# %% allreduce, called
data = [np.ones((1, 2), ctx=d2l.try_gpu(i)) * (i + 1) for i in range(2)]
allreduce(data)
assert [x.tolist() for x in data] == [[[3, 3]], [[3, 3]]]


# %% split_batch
def split_batch(X, y, devices):
    assert X.shape[0] == y.shape[0]
    return (
        gluon.utils.split_and_load(X, devices),
        gluon.utils.split_and_load(y, devices),
    )


# %% split_batch, called
devices = [d2l.try_gpu(i) for i in range(2)]
split, _ = split_batch(np.arange(20).reshape(4, 5), np.arange(4), devices)
assert [x.tolist() for x in split] == [
    [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]],
    [[10, 11, 12, 13, 14], [15, 16, 17, 18, 19]],
]


# %% train_batch
def train_batch(X, y, device_params, devices, lr):
    X_shards, y_shards = split_batch(X, y, devices)
    with autograd.record():
        ls = [
            loss(lenet(X_shard, device_W), y_shard)
            for X_shard, y_shard, device_W in zip(
                X_shards, y_shards, device_params, strict=True
            )
        ]
    for one_loss in ls:
        one_loss.backward()
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
            npx.waitall()
    accuracy = d2l.evaluate_accuracy_gpu(
        lambda x: lenet(x, device_params[0]), test_iter, devices[0]
    )
    return accuracy, device_params


# %% train, on one device and on two
one = train(num_gpus=1, batch_size=64, lr=0.2)
two = train(num_gpus=2, batch_size=64, lr=0.2)
