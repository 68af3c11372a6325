// What data parallelism adds to a step: replicas.py of the library, line by line.
globalThis.replicas = (kernels, layers) => {
  const { memorySeconds, ncclSeconds, beside } = kernels;
  const { work } = layers;
  const sum = (numbers) => numbers.reduce((a, b) => a + b, 0);

  // As Python rounds: a half goes to the even number.
  const rounded = (x) => {
    const low = Math.floor(x);
    if (x - low !== 0.5) return Math.round(x);
    return low % 2 ? low + 1 : low;
  };

  // Devices that divide what is sharded from this stage of ZeRO on, or 1.
  const owners = (layout, zero) => (layout.zero >= zero ? layout.data : 1);

  const collective = (kind, s, layout, bytes) => {
    const each = Math.floor(s.cluster.per_node / layout.tensor);
    const near = Math.max(1, Math.min(layout.data, each));
    return ncclSeconds(kind, bytes, layout.data, s.cluster, near);
  };

  // A pass with its messages, of which nothing hides `bare`.
  const hidden = (s, compute, messages, bare) =>
    s.software.overlap_data
      ? beside(compute, messages - bare, s.cluster) + bare
      : compute + messages;

  // One micro-batch of a stage with the messages that ZeRO 2 and 3 send for it.
  const shardSeconds = (s, layout, stage, pass) => {
    if (layout.data === 1 || layout.zero < 2) return pass;
    const { model, software } = s;
    const pieces = Array(rounded(stage.layers)).fill(model.layerParameters);
    let ends = stage.embedding + stage.head;
    if (model.tied) ends = Math.min(ends, 1);
    pieces.push(...Array(ends).fill(model.embeddingParameters));
    if (!pieces.length) return pass;
    const each = (kind, size) =>
      pieces.map((n) => collective(kind, s, layout, (size * n) / layout.tensor));
    const scatter = each("reduce_scatter", software.gradient_bytes);
    const gather = layout.zero < 3 ? [0] : each("allgather", 2);
    return work(
      hidden(s, pass.forward, sum(gather), gather[0]),
      hidden(s, pass.backward, sum(gather) + sum(scatter), scatter[0]),
    );
  };

  // Gradients in the order in which they are made, in whole tensors (layout.py).
  const buckets = (model, layout, stage, weights, least) => {
    if (least === null) return weights ? [weights] : [];
    const ends = model.embeddingParameters / layout.tensor;
    const h = model.hidden / layout.tensor;
    const layer = [model.ffn * h, model.up * h, model.hidden * h, model.qkv * h];
    let tensors = Array(rounded(stage.layers)).fill(layer).flat();
    if (stage.head && !(model.tied && stage.embedding)) tensors = [ends, ...tensors];
    const found = [];
    let size = 0;
    for (const tensor of tensors) {
      size += tensor;
      if (2 * size >= least) {
        found.push(size);
        size = 0;
      }
    }
    return [...found, size, ends * stage.embedding].filter((n) => n);
  };

  // A stage's sums, beside its last way back and those of the stages before it.
  const exposedSeconds = (s, layout, stage, weights, works) => {
    const { software } = s;
    const sharded = layout.zero > 0;
    const sizes = buckets(s.model, layout, stage, weights, software.bucket);
    if (!sizes.length) return 0;
    const kind = sharded ? "reduce_scatter" : "allreduce";
    const costs = sizes.map((size) =>
      collective(kind, s, layout, software.gradient_bytes * size),
    );
    const window = works[works.length - 1].backward;
    let exposed = sum(costs);
    if (sharded && software.shards_wait) {
      exposed += memorySeconds(s.cluster.device, 16 * weights, 0);
    } else if (software.overlap_data) {
      const all = sum(sizes);
      let [made, free] = [0, 0];
      costs.forEach((cost, i) => {
        made += sizes[i];
        free = Math.max((window * made) / all, free) + cost;
      });
      const besides = exposed - (free - window);
      exposed = free - window + beside(window, besides, s.cluster) - window;
    }
    return exposed - sum(works.slice(0, -1).map((w) => w.backward));
  };

  const newWeights = (s, layout, weights, forward) => {
    const gather = collective("allgather", s, layout, 2 * weights);
    if (layout.zero === 1 && s.software.shards_wait)
      return gather + memorySeconds(s.cluster.device, 8 * weights, 0);
    return Math.max(0, gather - forward);
  };

  const tiedEnds = (s, layout) => {
    if (!s.model.tied || layout.pipeline === 1) return 0;
    const far = layout.data * layout.tensor >= s.cluster.per_node;
    const size = (4 * s.model.embeddingParameters) / layout.tensor;
    return ncclSeconds("allreduce", size, 2, s.cluster, far ? 1 : 2);
  };

  // What the collectives at the end of a step add, beyond what hides them.
  const gradientSeconds = (s, layout, stages, weights, works) => {
    let total = tiedEnds(s, layout);
    if (layout.data === 1) return total;
    if (layout.zero < 2) {
      const each = stages.map((stage, i) =>
        exposedSeconds(s, layout, stage, weights[i], works.slice(0, i + 1)),
      );
      total += Math.max(0, ...each);
    }
    if (layout.zero === 1 || layout.zero === 2)
      total += newWeights(s, layout, Math.max(...weights), works[0].forward);
    return total;
  };

  return { owners, shardSeconds, gradientSeconds };
};
