"""The cheat sheet's rows for tools with one process for two devices.

As in `cheat_processes`: each function carries out the rows and asserts their effect.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
from book.cheat_sheet import Sheet


def mxnet_rows(rows: dict[str, list[str]], folder: str) -> list[str]:
    import mxnet as mx
    import numpy as np

    mx.npx.set_np()
    dense = mx.gluon.nn.Dense(1, in_units=4, use_bias=False)
    net = mx.gluon.nn.Sequential()
    net.add(dense)
    do = Sheet(rows, mx=mx, net=net, x=mx.np.ones(2), X=mx.np.ones((5, 4)), n=5)
    do("Count the GPUs")
    do("Choose the GPU")
    assert do["x"].ctx == mx.cpu(1)
    do("Start")
    do("Copy the model")
    one, two = (dense.weight.data(context).asnumpy() for context in do["contexts"])
    assert (one == two).all()
    do("Shard the batch")
    assert sorted(len(part) for part in do["parts"]) == [2, 3]
    first, second = do["contexts"]
    do["data"] = [mx.np.ones(2, ctx=first), 2 * mx.np.ones(2, ctx=second)]
    do("All-reduce by hand")
    assert [float(x[0]) for x in do["data"]] == [3.0, 3.0]
    do("Normalize over all devices")
    assert isinstance(do["norm"], mx.gluon.Block)
    with mx.autograd.record():
        losses = [net(part).sum() for part in do["parts"]]
    mx.autograd.backward(losses)
    do("Sum the gradients")
    for context in do["contexts"]:  # five examples of 1, over 5, at SGD's rate 0.01
        assert abs(one - dense.weight.data(context).asnumpy() - 0.01).max() < 1e-6
    grow, clear = do.rows.pop("Accumulate gradients")
    exec(grow, do.names)
    for _ in range(2):
        with mx.autograd.record():
            losses = [net(part).sum() for part in do["parts"]]
        mx.autograd.backward(losses)
    assert sum(float(g[0, 0]) for g in dense.weight.list_grad()) == 2 * 5
    exec(clear, do.names)
    assert sum(float(g[0, 0]) for g in dense.weight.list_grad()) == 0
    os.chdir(folder)
    do("Save once")
    assert os.listdir() == ["net.params"]
    saved = dense.weight.data(first).copy()
    dense.weight.set_data(0 * saved)
    do("Resume")
    assert all((w == saved.as_in_ctx(w.ctx)).all() for w in dense.weight.list_data())
    do("Warm up the learning rate")
    rates = [do["rate"](step) for step in (1, 3, 5, 100)]
    assert rates == pytest.approx([0.02, 0.06, 0.1, 0.1])
    do("Gather from all ranks")
    assert (do["whole"] == do["X"]).all() and do["whole"].ctx == first
    do("Compute in 16 bits")
    assert dense.weight.data(first).dtype == np.float16
    return sorted(do.rows)


def two_logical_devices() -> Any:
    """Import TensorFlow with its CPU as two devices."""
    import tensorflow as tf

    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0],
        [tf.config.LogicalDeviceConfiguration() for _ in range(2)],
    )
    return tf


def linear_model(keras: Any) -> Any:
    """Make four inputs and one output, all weights 1."""
    layers = [keras.layers.Input((4,)), keras.layers.Dense(1, use_bias=False)]
    model = keras.Sequential(layers)
    model.layers[-1].kernel.assign([[1.0]] * 4)
    return model


def weights_of(model: Any) -> list[float]:
    """Return the first weight of both replicas."""
    (weight,) = model.trainable_variables
    return [float(copy[0, 0]) for copy in weight.value.values]


def tensorflow_rows(rows: dict[str, list[str]], folder: str) -> list[str]:
    tf = two_logical_devices()
    import keras
    import numpy as np

    do = Sheet(rows, tf=tf, keras=keras, x=tf.constant(1.0))
    do["make_model"] = lambda: linear_model(keras)
    do("Count the GPUs")
    do("Choose the GPU")
    assert do["x"].device.endswith("CPU:1")
    do("Start")
    do("Copy the model")
    assert weights_of(do["model"]) == [1.0, 1.0]
    do["data"] = tf.data.Dataset.from_tensor_slices(np.ones((32, 4), "float32"))
    do("Shard the batch")
    ((batch),) = do["batches"]
    assert [len(part) for part in batch.values] == [16, 16]
    do("Normalize over all devices")
    with do["strategy"].scope():
        do["optimizer"] = keras.optimizers.SGD(1.0)
        do["optimizer"].build(do["model"].trainable_variables)
    apply, average = do.rows.pop("Sum the gradients")
    by_hand = do.rows.pop("All-reduce by hand")

    def on_each(X: Any) -> Any:
        names = {**do.names, "variables": do["model"].trainable_variables}  # its own
        with tf.GradientTape() as tape:
            names["losses"] = do["model"](X)[:, 0]
            loss = eval(average, names)
        names["gradients"] = tape.gradient(loss, names["variables"])
        exec(apply, names)
        names["x"] = tf.constant(2.0)
        for code in by_hand:
            exec(code, names)
        return names["total"]

    totals = do["strategy"].run(on_each, args=(batch,))
    both = do["strategy"].experimental_local_results(totals)
    assert [float(x) for x in both] == [4.0, 4.0]
    assert weights_of(do["model"]) == [0.0, 0.0]  # the mean over all 32 is 1
    do["sums"], do["gradients"] = [1.0], [2.0]
    do("Accumulate gradients")
    assert do["sums"] == [3.0]
    gather = do.rows.pop("Gather from all ranks")

    def gathered(X: Any) -> Any:
        names = {"tf": tf, "x": X}
        for code in gather:
            exec(code, names)
        return names["whole"]

    wholes = do["strategy"].run(gathered, args=(batch,))
    both = do["strategy"].experimental_local_results(wholes)
    assert [whole.shape for whole in both] == [(32, 4), (32, 4)]
    shared_rows(do, keras, folder)
    return sorted(do.rows)


def shared_rows(do: Sheet, keras: Any, folder: str) -> None:
    """Carry out what stands under TensorFlow and under Keras."""
    do("Warm up the learning rate")
    rates = [float(do["rate"](step)) for step in (0, 1, 5, 105)]
    assert rates == pytest.approx([0.02, 0.036, 0.1, 0.0])
    os.chdir(folder)
    do("Save once")
    assert os.listdir() == ["net.weights.h5"]
    (saved,) = do["model"].get_weights()
    do["model"].set_weights([saved + 1])
    do("Resume")
    assert (do["model"].get_weights()[0] == saved).all()
    do("Compute in 16 bits")
    model = linear_model(keras)
    (weight,) = model.trainable_variables
    assert (weight.dtype, model.layers[-1].compute_dtype) == ("float32", "bfloat16")


def keras_rows(rows: dict[str, list[str]], folder: str) -> list[str]:
    tf = two_logical_devices()
    import keras
    import numpy as np

    def compiled(**settings: Any) -> Any:
        model = linear_model(keras)
        model.compile(keras.optimizers.SGD(1.0, **settings), "mean_absolute_error")
        return model

    do = Sheet(rows, tf=tf, keras=keras, x=tf.constant(1.0))
    do["make_compiled_model"] = compiled
    do("Count the GPUs")
    do("Choose the GPU")
    do("Start")
    do("Copy the model")
    X, y = np.ones((32, 4), "float32"), np.zeros((32, 1), "float32")
    do["data"] = tf.data.Dataset.from_tensor_slices((X, y))
    do("Shard the batch")
    assert weights_of(do["model"]) == [0.0, 0.0]
    do("Normalize over all devices")
    do("Accumulate gradients")  # names the option that fails
    option = {"gradient_accumulation_steps": do["gradient_accumulation_steps"]}
    with do["strategy"].scope():
        model = compiled(**option)
    with pytest.raises((RuntimeError, ValueError)):  # if not: mend the row
        model.fit(do["data"].batch(16), verbose=0)
    assert do.rows.pop("Sum the gradients") == []  # fit does it
    shared_rows(do, keras, folder)
    return sorted(do.rows)
