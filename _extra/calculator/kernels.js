// How long one GPU's kernels and NCCL's collectives take: kernels.py and nccl.py of the
// library (d2lmulti_cluster), line by line. All constants come in K, which
// _ext/interactive.py takes from the library; a test holds both against
// each other.
globalThis.clusterKernels = (K) => {
  const memorySeconds = (device, nbytes, kernels) =>
    nbytes / (device.memory_bandwidth * device.memory_share) + kernels * K.KERNEL;

  const matmulSeconds = (device, m, n, k) => {
    if (!(m * n * k)) return 0;
    const rate = (device.flops * device.matmul_share * K.USUAL_SHAPE) / device.units;
    let best = Infinity;
    for (const [height, width, speed] of K.TILES) {
      const tiles = Math.ceil(m / height) * Math.ceil(n / width);
      const flops = Math.ceil(tiles / device.units) * 2 * height * width * k;
      best = Math.min(best, flops / (rate * speed));
    }
    const moved = 2 * (m * k + k * n + m * n);
    const memory = device.memory_bandwidth * device.memory_share;
    return Math.max(best, moved / memory) + K.KERNEL;
  };

  const flashSeconds = (device, flops, headSize, kind) => {
    const ampere = device.generation === "ampere";
    const [small, large] = ampere ? K.FLASH_AMPERE : K.FLASH[kind];
    const weight = Math.min(Math.max((headSize - 64) / 64, 0), 1);
    const [forward, backward] = small.map(
      (a, i) => device.flops * (a + weight * (large[i] - a)),
    );
    return [flops / 2 / forward, (2.5 * flops) / 2 / backward];
  };

  const protocolsOf = (cluster) => {
    const some =
      cluster.fabric === "pcie" || K.WITHOUT_LL128.includes(cluster.device.name);
    return K.PROTOCOLS.map((p, i) => [i, p]).filter(
      ([, p]) => !(some && p.name === "LL128"),
    );
  };

  const llMost = (cluster, nodes) => {
    const name = cluster.device.name.split("-")[0];
    return name in K.LL_MOST ? K.LL_MOST[name][Math.min(nodes, 3) - 1] : Infinity;
  };

  const ring = (collective, nbytes, n, nodes, bandwidth, cluster) => {
    const steps = (collective === "allreduce" ? 2 : 1) * (n - 1);
    const wire = collective === "broadcast" ? nbytes : (nbytes * steps) / n;
    let best = Infinity;
    for (const [i, protocol] of protocolsOf(cluster)) {
      const hop = nodes === 1 ? protocol.hop[cluster.fabric] : cluster.hops[i];
      let speed = protocol.data * bandwidth;
      if (protocol.name === "LL") speed = Math.min(speed, llMost(cluster, nodes));
      best = Math.min(best, protocol.base + steps * hop + wire / speed);
    }
    return best;
  };

  const tree = (nbytes, nodes, perNode, bandwidth, cluster) => {
    const between = cluster.tree_hops ?? cluster.hops;
    let best = Infinity;
    for (const [i, protocol] of protocolsOf(cluster)) {
      if (protocol.name === "Simple") continue;
      const inner = (perNode - 1) * protocol.tree_hop[cluster.fabric];
      const hops = 2 * (inner + Math.log2(nodes) * between[i]);
      const wire = (2 * nbytes) / (protocol.data * bandwidth);
      best = Math.min(best, protocol.tree_base + hops + wire);
    }
    return best;
  };

  // The largest vector for which the tuner takes a tree, by the number of ranks.
  const treeUpTo = (n) => {
    let [x, first] = K.TREE_UP_TO[0];
    const more = K.TREE_UP_TO.slice(1);
    for (const [i, [most, ranks]] of more.entries()) {
      if (n <= ranks || i === more.length - 1)
        return x + ((n - first) * (most - x)) / (ranks - first);
      [x, first] = [most, ranks];
    }
    return x;
  };

  const nicPerDevice = (cluster) =>
    (cluster.between.bandwidth * cluster.nics) / cluster.per_node;

  const ncclSeconds = (collective, nbytes, n, cluster, atMost) => {
    if (n === 1) return 0;
    const perNode = Math.min(n, atMost);
    const nodes = Math.ceil(n / perNode);
    let bandwidth = cluster.inside.bandwidth;
    if (nodes > 1) bandwidth = Math.min(bandwidth, nicPerDevice(cluster) * perNode);
    const flat = ring(collective, nbytes, n, nodes, bandwidth, cluster);
    if (collective === "allreduce" && nodes > 1 && nbytes <= treeUpTo(n))
      return K.KERNEL + Math.min(flat, tree(nbytes, nodes, perNode, bandwidth, cluster));
    return K.KERNEL + flat;
  };

  // A computation and a collective at once: the collective holds some multiprocessors.
  const beside = (compute, communicate, cluster) => {
    const lost = Math.min(1, K.SHARE_OF_UNITS / cluster.device.units);
    return Math.max(communicate, compute + lost * communicate);
  };

  return { memorySeconds, matmulSeconds, flashSeconds, ncclSeconds, beside, nicPerDevice };
};
