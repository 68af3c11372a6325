// One training step of a transformer, in time and memory: layout.py, footprint.py and
// step_time.py of the library (d2lmulti_cluster), line by line.
globalThis.stepModel = (K) => {
  const kernels = globalThis.clusterKernels(K);
  const { memorySeconds, nicPerDevice } = kernels;
  const layers = globalThis.transformerLayers(kernels);
  const { work, plus, times } = layers;
  const { owners, shardSeconds, gradientSeconds } = globalThis.replicas(kernels, layers);

  const cutLayers = (model, layout, software) => {
    const p = layout.pipeline;
    if (p * layout.chunks > model.layers + 5) return null; // more stages than layers
    const stages = Array.from({ length: p }, () => ({
      layers: 0,
      embedding: false,
      head: false, // and the loss
    }));
    if (!software.cut_by_cost) {
      for (const stage of stages) stage.layers = model.layers / p;
      stages[0].embedding = stages[p - 1].head = true;
      return stages;
    }
    const costs = { layer: model.layerParameters, head: model.embeddingParameters };
    const total = model.layers * costs.layer + costs.head;
    const middle = Array(model.layers).fill("layer");
    let [done, i] = [0, 0];
    for (const block of ["embedding", ...middle, "head"]) {
      if (block === "layer") stages[i].layers += 1;
      else stages[i][block] = true;
      done += costs[block] ?? 0;
      if (done > (total * (i + 1)) / p && i < p - 1) i += 1;
    }
    return stages;
  };

  const stageParameters = (model, layout, stage) => {
    let ends = stage.embedding + stage.head;
    if (model.tied && stage.embedding && stage.head) ends = 1;
    const weights =
      stage.layers * model.layerParameters + ends * model.embeddingParameters;
    return weights / layout.tensor;
  };

  const inFlight = (layout, i) => Math.min(layout.micro_batches, layout.pipeline - i);

  const activations = (model, layout, stage, i) => {
    const tokens = layout.micro_batch * model.sequence;
    const share = layout.sequence ? layout.tensor : 1;
    const inner = 10 * model.hidden + 8 * model.ffn * (model.up / (2 * model.ffn));
    let aToken = (8 * model.hidden) / share + inner / layout.tensor;
    if (layout.recompute === "full") aToken = (2 * model.hidden) / share;
    let held = inFlight(layout, i) * stage.layers * tokens * aToken;
    if (stage.head) held += (12 * tokens * model.vocabulary) / layout.tensor;
    return held;
  };

  // With ZeRO 2 a piece's gradients are whole for a while, with ZeRO 3 also weights.
  const statesOf = (model, layout, stage, software) => {
    const weights = stageParameters(model, layout, stage);
    const aWeight = 2 / owners(layout, 3) + 12 / owners(layout, 1);
    let held = weights * (aWeight + software.gradient_bytes / owners(layout, 2));
    if (weights && owners(layout, 2) > 1) {
      const ends = model.embeddingParameters * (stage.embedding || stage.head);
      const piece = Math.max(model.layerParameters, ends) / layout.tensor;
      held += piece * (owners(layout, 3) > 1 ? 6 : 2);
    }
    return held;
  };

  const footprint = (model, layout, software, stages) => {
    const each = stages.map((stage, i) => {
      const states = statesOf(model, layout, stage, software);
      const kept = activations(model, layout, stage, i);
      return { needed: states + kept, states, activations: kept };
    });
    return each.reduce((a, b) => (b.needed > a.needed ? b : a));
  };

  const messages = (s, layout) => {
    const { cluster, software, model } = s;
    const far = layout.data * layout.tensor >= cluster.per_node;
    const hop = far ? cluster.between.latency : 10e-6;
    const speed = far ? nicPerDevice(cluster) : cluster.inside.bandwidth;
    const whole = 2 * s.tokens * model.hidden;
    if (software.handshakes) {
      const size = whole / (s.sequence ? s.tensor : 1);
      const asked = software.handshakes * 3;
      const wait = hop + 2 * K.CALL;
      const there = asked * wait + 20 * K.CALL + size / speed;
      return [there, (asked / 2) * wait + 10 * K.CALL + size / speed];
    }
    let one = hop + whole / s.tensor / speed;
    if (!s.sequence && s.tensor > 1) one += layers.collective(s, "allgather");
    return [layout.chunks * one, layout.chunks * one];
  };

  // One micro-batch through one stage: at least as long as the host needs to ask.
  const stageWork = (s, layout, stage, weights) => {
    const layer = layers.layerWork(s);
    let again = work(0, 0);
    if (layout.recompute === "full")
      again = work(0, layer.forward, 0, layer.forwardCalls);
    else if (layout.recompute === "selective") again = work(0, layers.attention(s)[0]);
    const [head, loss] = layers.headWork(s);
    let all = times(plus(layer, again), stage.layers);
    all = plus(all, times(plus(head, loss), +stage.head));
    const sums = (s.software.accumulate_bytes * weights) / owners(layout, 2);
    const forward = all.forward;
    let backward = all.backward + memorySeconds(s.cluster.device, sums, 0);
    const asked = [all.forwardCalls * K.CALL, all.backwardCalls * K.CALL];
    if (layout.pipeline === 1) {
      backward = Math.max(forward + backward, asked[0] + asked[1]) - forward;
      return shardSeconds(s, layout, stage, work(forward, backward));
    }
    all = work(Math.max(forward, asked[0]), Math.max(backward, asked[1]));
    return plus(shardSeconds(s, layout, stage, all), work(...messages(s, layout)));
  };

  const pipelineSeconds = (works, layout) => {
    const each = works.map((w) => w.forward + w.backward);
    const [slowest, m] = [Math.max(...each), layout.micro_batches];
    if (layout.chunks > 1) return slowest * (m + (each.length - 1) / layout.chunks);
    return each.reduce((a, b) => a + b, 0) + (m - 1) * slowest;
  };

  const optimizerSeconds = (s, layout, weights) => {
    const moved = weights * (16 / owners(layout, 2) + 34 / owners(layout, 1));
    const calls = (5 * 6 * s.model.layers) / layout.pipeline;
    return memorySeconds(s.cluster.device, moved, 0) + calls * K.CALL;
  };

  // Seconds, where they go, memory; null for a layout that the model cannot have.
  return (row, layout, cluster, software) => {
    const model = layers.shapeOf(row);
    const stages = cutLayers(model, layout, software);
    if (model.heads % layout.tensor || !stages) return null;
    const s = layers.makeSplit(
      model, cluster, software, layout.micro_batch, layout.tensor,
      layout.sequence && layout.tensor > 1,
    ); // prettier-ignore
    const weights = stages.map((stage) => stageParameters(model, layout, stage));
    const works = stages.map((stage, i) => stageWork(s, layout, stage, weights[i]));
    const piped = pipelineSeconds(works, layout);
    const gradients = gradientSeconds(s, layout, stages, weights, works);
    const optimizer = optimizerSeconds(s, layout, Math.max(...weights));
    const gpus = layout.data * layout.tensor * layout.pipeline;
    const tokens = layout.data * layout.micro_batch * layout.micro_batches * model.sequence;
    const seconds = piped + gradients + optimizer;
    return {
      seconds,
      stages: piped,
      gradients,
      optimizer,
      tokens_per_gpu: tokens / seconds / gpus,
      utilization: model.flops(tokens) / seconds / gpus / cluster.device.flops,
      ...footprint(model, layout, software, stages),
      works: works.map(({ forward, backward }) => ({ forward, backward })),
    };
  };
};
