// How long one layer of a transformer takes, forward and backward, split over GPUs:
// networks.py and layer_time.py of the library (d2lmulti_cluster), line by line.
globalThis.transformerLayers = (kernels) => {
  const { memorySeconds, matmulSeconds, flashSeconds, ncclSeconds, beside } = kernels;

  // A network's widths and weights, from its row of the table.
  const shapeOf = (row) => {
    const kvHeads = row.kv_heads || row.heads;
    const qkv = row.hidden * (1 + (2 * kvHeads) / row.heads);
    const up = row.gated ? 2 * row.ffn : row.ffn;
    const layerParameters = row.hidden * (qkv + row.hidden + up + row.ffn);
    const embeddingParameters = row.vocabulary * row.hidden;
    const flops = (tokens) => {
      const weights = row.layers * layerParameters + embeddingParameters;
      return 6 * tokens * (weights + 2 * row.layers * row.sequence * row.hidden);
    };
    return { ...row, qkv, up, layerParameters, embeddingParameters, flops };
  };

  const work = (forward, backward, forwardCalls = 0, backwardCalls = 0) => ({
    forward,
    backward,
    forwardCalls,
    backwardCalls,
  });
  const plus = (a, b) =>
    work(
      a.forward + b.forward,
      a.backward + b.backward,
      a.forwardCalls + b.forwardCalls,
      a.backwardCalls + b.backwardCalls,
    );
  const times = (a, count) =>
    work(
      a.forward * count,
      a.backward * count,
      a.forwardCalls * count,
      a.backwardCalls * count,
    );

  const makeSplit = (model, cluster, software, microBatch, tensor, sequence) => ({
    model,
    cluster,
    software,
    microBatch,
    tensor,
    sequence,
    tokens: microBatch * model.sequence,
  });
  const product = (s, m, n, k) => matmulSeconds(s.cluster.device, m, n, k);
  const collective = (s, kind, nbytes = 2 * s.tokens * s.model.hidden) =>
    ncclSeconds(kind, nbytes, s.tensor, s.cluster, Math.min(s.tensor, s.cluster.per_node));

  const attention = (s) => {
    const { model, software } = s;
    const { device } = s.cluster;
    const scores = ((s.microBatch * model.heads) / s.tensor) * model.sequence ** 2;
    const size = model.hidden / model.heads;
    const flops = 4 * scores * size;
    if (software.attention !== "unfused")
      return flashSeconds(device, flops, size, software.attention);
    const two = flops / (device.flops * device.matmul_share * 0.85);
    const forward = two + memorySeconds(device, 13 * scores, 4);
    return [forward, 2 * two + memorySeconds(device, 21 * scores, 6)];
  };

  // A product from all features to a slice of `width`: forward, backward.
  const column = (s, width) => {
    const [T, h, n] = [s.tokens, s.model.hidden, width / s.tensor];
    const [data, weight] = [product(s, T, h, n), product(s, n, h, T)];
    const forward = product(s, T, n, h);
    if (s.tensor === 1) return [forward, data + weight];
    const how = s.software.overlap;
    if (!s.sequence) {
      const total = collective(s, "allreduce");
      if (how === "none") return [forward, data + weight + total];
      return [forward, data + beside(weight, total, s.cluster)];
    }
    const gather = collective(s, "allgather");
    const scatter = collective(s, "reduce_scatter");
    const back = beside(data, gather, s.cluster) + beside(weight, scatter, s.cluster);
    if (how === "own shard") {
      const rest = 2 * product(s, (T * (s.tensor - 1)) / s.tensor / 2, n, h);
      const own = product(s, T / s.tensor, n, h);
      return [beside(own, gather, s.cluster) + rest, back];
    }
    if (how === "chunks") {
      const both = beside(forward, gather, s.cluster);
      return [both + Math.min(forward, gather) / s.tensor, back];
    }
    return [forward + gather, back];
  };

  // A product from a slice of `width` to all features: forward, backward.
  const row = (s, width) => {
    const [T, h, k] = [s.tokens, s.model.hidden, width / s.tensor];
    const forward = product(s, T, h, k);
    const [data, weight] = [product(s, T, k, h), product(s, k, h, T)];
    if (s.tensor === 1) return [forward, data + weight];
    if (!s.sequence) return [forward + collective(s, "allreduce"), data + weight];
    const gather = collective(s, "allgather");
    const scatter = collective(s, "reduce_scatter");
    if (s.software.overlap === "own shard") {
      const rest = 2 * product(s, (T * (s.tensor - 1)) / s.tensor / 2, k, h);
      const own = product(s, T / s.tensor, k, h);
      return [forward + scatter, beside(own, gather, s.cluster) + rest + weight];
    }
    if (s.software.overlap === "chunks") {
      const there =
        beside(forward, scatter, s.cluster) + Math.min(forward, scatter) / s.tensor;
      const back = beside(data, gather, s.cluster) + Math.min(data, gather) / s.tensor;
      return [there, back + weight];
    }
    return [forward + scatter, data + weight + gather];
  };

  const layerWork = (s) => {
    const { model, software } = s;
    const parts = [
      column(s, model.qkv),
      row(s, model.hidden),
      column(s, model.up),
      row(s, model.ffn),
      attention(s),
    ];
    const share = s.sequence ? s.tensor : 1;
    const sum = (way) => parts.reduce((total, part) => total + part[way], 0);
    const moved = ([a, b, c]) =>
      s.tokens *
      ((a * model.hidden) / share +
        (b * model.hidden) / s.tensor +
        (c * model.up) / s.tensor);
    const { device } = s.cluster;
    return work(
      sum(0) + memorySeconds(device, moved(software.forward_bytes), software.kernels[0]),
      sum(1) + memorySeconds(device, moved(software.backward_bytes), software.kernels[1]),
      ...(s.tensor > 1 ? software.split_calls : software.calls),
    );
  };

  // The product with the vocabulary, and the loss in float32: two pieces of work.
  const headWork = (s) => {
    const [T, h, v] = [s.tokens, s.model.hidden, s.model.vocabulary / s.tensor];
    const many = s.tensor > 1;
    const gather = s.sequence && many ? collective(s, "allgather") : 0;
    const total = many ? collective(s, s.sequence ? "reduce_scatter" : "allreduce") : 0;
    const back = product(s, T, h, v) + product(s, v, h, T);
    const sums = many ? 3 * collective(s, "allreduce", 4 * T) : 0;
    const { device } = s.cluster;
    const forward = memorySeconds(device, 38 * T * v, 12) + sums;
    return [
      work(product(s, T, v, h) + gather, back + total),
      work(forward, memorySeconds(device, 14 * T * v, 4), 25, 15),
    ];
  };

  return { shapeOf, work, plus, times, makeSplit, collective, attention, layerWork, headWork };
};
