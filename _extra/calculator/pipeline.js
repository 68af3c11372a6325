// One step as a chart: 1F1B played box by box, with each stage's own seconds. The
// messages between stages are part of a stage's seconds, as they are in step_time.js.
globalThis.playPipeline = (works, microBatches) => {
  const [p, m] = [works.length, microBatches];
  const order = works.map((_, s) => {
    const ahead = Math.min(m, p - s - 1);
    const list = [];
    for (let i = 0; i < ahead; i += 1) list.push(["F", i]);
    for (let i = ahead; i < m; i += 1) list.push(["F", i], ["B", i - ahead]);
    for (let i = m - ahead; i < m; i += 1) list.push(["B", i]);
    return list;
  });
  const ends = new Map();
  const rows = works.map(() => []);
  const free = works.map(() => 0);
  const next = works.map(() => 0);
  // When the message that it waits for is there, or undefined as long as nobody knows.
  const ready = (kind, s, i) => {
    const from = kind === "F" ? s - 1 : s + 1;
    return from < 0 || from === p ? 0 : ends.get(`${kind} ${from} ${i}`);
  };
  for (let moved = true; moved; ) {
    moved = false;
    for (let s = 0; s < p; s += 1) {
      while (next[s] < order[s].length) {
        const [kind, i] = order[s][next[s]];
        const there = ready(kind, s, i);
        if (there === undefined) break;
        const start = Math.max(free[s], there);
        const end = start + (kind === "F" ? works[s].forward : works[s].backward);
        rows[s].push({ kind, later: false, micro: String(i), start, end });
        ends.set(`${kind} ${s} ${i}`, end);
        free[s] = end;
        next[s] += 1;
        moved = true;
      }
    }
  }
  return { rows, end: Math.max(...free) };
};
