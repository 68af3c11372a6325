// One training step of a transformer, in time and memory: layout.py, footprint.py and
// step_time.py of the library (d2lmulti/cluster), line by line.
globalThis.stepModel = (K) => {
  const kernels = globalThis.clusterKernels(K);
  const { memorySeconds, ncclSeconds, beside, nicPerDevice } = kernels;
  const layers = globalThis.transformerLayers(kernels);
  const { work, plus, times } = layers;

  // As Python rounds: a half goes to the even number.
  const rounded = (x) => {
    const low = Math.floor(x);
    if (x - low !== 0.5) return Math.round(x);
    return low % 2 ? low + 1 : low;
  };

  const cutLayers = (model, layout, software) => {
    const p = layout.pipeline;
    if (p * layout.chunks > model.layers + 5) return null; // more stages than layers
    const stages = Array.from({ length: p }, () => ({
      layers: 0,
      embedding: false,
      head: false,
      loss: false,
    }));
    if (!software.cut_by_cost) {
      for (const stage of stages) stage.layers = model.layers / p;
      stages[0].embedding = stages[p - 1].head = stages[p - 1].loss = true;
      return stages;
    }
    const costs = { layer: model.layerParameters, head: model.embeddingParameters };
    const total = model.layers * costs.layer + costs.head;
    const middle = Array(model.layers).fill("layer");
    let [done, i] = [0, 0];
    for (const block of ["embedding", ...middle, "norm", "head", "cast", "loss"]) {
      if (block === "layer") stages[i].layers += 1;
      else if (block in stages[i]) stages[i][block] = true;
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
    if (stage.head || stage.loss)
      held += (12 * tokens * model.vocabulary) / layout.tensor;
    return held;
  };

  const footprint = (model, layout, software, stages) => {
    const own = layout.zero ? layout.data : 1;
    const each = stages.map((stage, i) => {
      const weights = stageParameters(model, layout, stage);
      const states = weights * (2 + software.gradient_bytes + 12 / own);
      const kept = activations(model, layout, stage, i);
      return { needed: states + kept, states, activations: kept };
    });
    return each.reduce((a, b) => (b.needed > a.needed ? b : a));
  };

  const messages = (s, layout, stage) => {
    const { cluster, software, model } = s;
    const far = layout.data * layout.tensor >= cluster.per_node;
    const hop = far ? cluster.between.latency : 10e-6;
    const speed = far ? nicPerDevice(cluster) : cluster.inside.bandwidth;
    const whole = 2 * s.tokens * model.hidden;
    if (software.handshakes) {
      let size = whole / (s.sequence ? s.tensor : 1);
      if (stage.head !== stage.loss)
        size = (2 * s.tokens * model.vocabulary) / s.tensor;
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
    all = plus(all, plus(times(head, +stage.head), times(loss, +stage.loss)));
    const sums = s.software.accumulate_bytes * weights;
    let forward = all.forward;
    let backward = all.backward + memorySeconds(s.cluster.device, sums, 0);
    const asked = [all.forwardCalls * K.CALL, all.backwardCalls * K.CALL];
    if (layout.pipeline === 1) {
      backward = Math.max(forward + backward, asked[0] + asked[1]) - forward;
    } else {
      const [there, back] = messages(s, layout, stage);
      forward = Math.max(forward, asked[0]) + there;
      backward = Math.max(backward, asked[1]) + back;
    }
    return work(forward, backward);
  };

  const pipelineSeconds = (works, layout) => {
    const each = works.map((w) => w.forward + w.backward);
    const [slowest, m] = [Math.max(...each), layout.micro_batches];
    if (layout.chunks > 1) return slowest * (m + (each.length - 1) / layout.chunks);
    return each.reduce((a, b) => a + b, 0) + (m - 1) * slowest;
  };

  const near = (s, layout) =>
    Math.max(1, Math.min(layout.data, Math.floor(s.cluster.per_node / layout.tensor)));

  // A stage's sums, beside its last way back and those of the stages before it.
  const exposed = (s, layout, stage, weights, works) => {
    const { cluster, software } = s;
    const sharded = layout.zero > 0;
    const ends = (s.model.embeddingParameters / layout.tensor) * stage.embedding;
    let pieces = 1;
    if (software.bucket)
      pieces = Math.max(1, rounded(((weights - ends) * 2) / software.bucket));
    const kind = sharded ? "reduce_scatter" : "allreduce";
    const seconds = (elements) => {
      const size = software.gradient_bytes * elements;
      return ncclSeconds(kind, size, layout.data, cluster, near(s, layout));
    };
    const last = ends ? seconds(ends) : 0;
    const part = seconds((weights - ends) / pieces);
    let rest = pieces * part;
    if (sharded && software.bucket) rest += memorySeconds(cluster.device, 16 * weights, 0);
    const window = software.overlap_data ? works[works.length - 1].backward : 0;
    const hidden = Math.min(rest, (window * pieces) / (pieces + 1));
    const slowed = hidden ? beside(window, hidden, cluster) - window : 0;
    const later = works.slice(0, -1).reduce((sum, w) => sum + w.backward, 0);
    return Math.max(rest - hidden, part) + last + slowed - later;
  };

  const newWeights = (s, layout, weights, forward) => {
    const gather = ncclSeconds(
      "allgather", 2 * weights, layout.data, s.cluster, near(s, layout),
    ); // prettier-ignore
    if (s.software.bucket) return gather + memorySeconds(s.cluster.device, 8 * weights, 0);
    return Math.max(0, gather - forward);
  };

  const tiedEnds = (s, layout) => {
    if (!s.model.tied || layout.pipeline === 1) return 0;
    const far = layout.data * layout.tensor >= s.cluster.per_node;
    const size = (4 * s.model.embeddingParameters) / layout.tensor;
    return ncclSeconds("allreduce", size, 2, s.cluster, far ? 1 : 2);
  };

  const gradientSeconds = (s, layout, stages, weights, works) => {
    let total = tiedEnds(s, layout);
    if (layout.data === 1) return total;
    const each = stages.map((stage, i) =>
      exposed(s, layout, stage, weights[i], works.slice(0, i + 1)),
    );
    total += Math.max(0, ...each);
    if (layout.zero) total += newWeights(s, layout, Math.max(...weights), works[0].forward);
    return total;
  };

  const optimizerSeconds = (s, layout, weights) => {
    const moved = weights * (16 + 34 / (layout.zero ? layout.data : 1));
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
      utilisation: model.flops(tokens) / seconds / gpus / cluster.device.flops,
      ...footprint(model, layout, software, stages),
      works: works.map(({ forward, backward }) => ({ forward, backward })),
    };
  };
};
