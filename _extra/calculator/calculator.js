// The step calculator: choose a model, a cluster and a layout, and see what a step takes.
// The sums are those of step_time.js, the words those of the page's table of labels.
(() => {
  const CHOICES = [
    "network", "cluster", "program", "gpus", "tensor", "pipeline", "micro_batch",
    "micro_batches", "zero", "recompute",
  ]; // prettier-ignore
  const NUMBERS = ["gpus", "tensor", "pipeline", "micro_batch", "micro_batches", "zero"];
  const MOST_BOXES = 1200; // more of them are thinner than a pixel

  const digits = (x, most) => Number(x.toPrecision(most)).toLocaleString("en");
  const duration = (x) => (x < 1 ? `${digits(1000 * x, 3)} ms` : `${digits(x, 3)} s`);
  const filled = (text, values) =>
    text.replace(/\{(\w+)\}/g, (_, name) => values[name]);

  // What the controls say, as the model takes it; or the reason why it is no layout.
  const asked = (chosen, all, labels) => {
    const { gpus, tensor, pipeline } = chosen;
    const data = gpus / (tensor * pipeline);
    const { heads, layers } = all.networks[chosen.network];
    if (!Number.isInteger(data)) return { wrong: filled(labels["no data"], chosen) };
    if (heads % tensor)
      return { wrong: filled(labels["no heads"], { ...chosen, heads }) };
    if (pipeline > layers)
      return { wrong: filled(labels["no stages"], { ...chosen, layers }) };
    const { micro_batch, micro_batches, zero, recompute } = chosen;
    return {
      layout: {
        data, tensor, pipeline, micro_batch, micro_batches, zero, recompute,
        chunks: 1, sequence: true,
      },
    }; // prettier-ignore
  };

  // The parts of a step: name, color, seconds.
  const partsOf = (step, layout) => {
    const slowest = Math.max(...step.works.map((w) => w.forward + w.backward));
    const busy = layout.micro_batches * slowest;
    return [
      ["busy", "F", busy],
      ["bubble", "idle", step.stages - busy],
      ["gradients", "I", step.gradients],
      ["optimizer", "W", step.optimizer],
    ];
  };

  const stacked = (parts) => {
    let now = 0;
    return parts.map(([, kind, size]) => {
      const start = now;
      now += size;
      return { kind, later: false, micro: "", start, end: now };
    });
  };

  const chartOf = (step, layout) => {
    const { rows, end } = playPipeline(step.works, layout.micro_batches);
    const after = [
      ["I", step.gradients],
      ["W", step.optimizer],
    ];
    for (const row of rows) {
      let now = end;
      for (const [kind, size] of after) {
        row.push({ kind, later: false, micro: "", start: now, end: now + size });
        now += size;
      }
    }
    return { rows, end: end + step.gradients + step.optimizer };
  };

  const listed = (parts, write, labels) =>
    parts
      .map(([name, kind, size]) => {
        const word = labels[name] ?? labels[kind];
        return `<li><span class="${kind}"></span>${word}: ${write(size)}</li>`;
      })
      .join("");

  const start = (box) => {
    const { data: all, labels } = JSON.parse(box.querySelector("script").textContent);
    const stepTime = stepModel(all.constants);
    const find = (name) => box.querySelector(`[data-part="${name}"]`);
    const room = find("chart");

    const read = () => {
      const chosen = {};
      for (const name of CHOICES) {
        const { value } = find(name);
        chosen[name] = NUMBERS.includes(name) ? Number(value) : value;
      }
      return chosen;
    };

    const bar = (name, boxes, end, write) => {
      const place = find(name);
      const scale = place.clientWidth / end;
      place.innerHTML = timeChart.svg([boxes], end, scale, 0, write);
    };

    const show = () => {
      const chosen = read();
      const { layout, wrong } = asked(chosen, all, labels);
      box.classList.toggle("wrong", Boolean(wrong));
      find("results").hidden = Boolean(wrong);
      find("facts").textContent = wrong ?? "";
      find("fits").textContent = "";
      if (wrong) return;
      const cluster = all.clusters[chosen.cluster];
      const program = all.programs[chosen.program];
      const step = stepTime(all.networks[chosen.network], layout, cluster, program);
      const batch = layout.data * layout.micro_batch * layout.micro_batches;
      find("facts").textContent = filled(labels.facts, {
        ...layout,
        seconds: duration(step.seconds),
        batch: batch.toLocaleString("en"),
        tokens: digits(step.tokens_per_gpu, 4),
        mfu: digits(100 * step.utilization, 3),
      });
      const card = cluster.device.memory;
      const over = step.needed > card;
      find("fits").textContent = filled(labels[over ? "too large" : "fits"], {
        needed: digits(step.needed / 1e9, 3),
        card: digits(card / 1e9, 3),
      });
      find("fits").classList.toggle("over", over);

      const parts = partsOf(step, layout);
      bar("time", stacked(parts), step.seconds, duration);
      find("time-parts").innerHTML = listed(parts, duration, labels);
      const memory = [
        ["states", "B", step.states],
        ["activations", "F", step.activations],
      ];
      const write = (x) => `${digits(x / 1e9, 3)} GB`;
      bar("memory", stacked(memory), Math.max(card, step.needed), write);
      find("memory").style.setProperty("--card", card / Math.max(card, step.needed));
      find("memory-parts").innerHTML = listed(memory, write, labels);

      const few = 2 * layout.pipeline * layout.micro_batches <= MOST_BOXES;
      find("played").hidden = !few;
      if (!few) return;
      const { rows, end } = chartOf(step, layout);
      const name = (_, s) => `<div>${labels.stage} ${s}</div>`;
      find("names").innerHTML = rows.map(name).join("");
      room.innerHTML = timeChart.svg(rows, end, room.clientWidth / end, 0, duration);
      timeChart.fade(room);
      const played = rows[0][rows[0].length - 3].end; // the first stage's last way back
      find("note").textContent = filled(labels.played, {
        played: duration(played),
        formula: duration(step.stages),
      });
      find("note").hidden = layout.pipeline === 1;
    };

    // The layout of the same batch that fits and is fastest, of all that can be chosen.
    const best = () => {
      const chosen = read();
      const { gpus, micro_batch, micro_batches, tensor, pipeline } = chosen;
      const batch = (gpus / (tensor * pipeline)) * micro_batch * micro_batches;
      const offered = (name) => [...find(name).options].map((one) => one.value);
      const [network, cluster] = [all.networks[chosen.network], all.clusters[chosen.cluster]];
      let found = null;
      for (const t of offered("tensor").map(Number))
        for (const p of offered("pipeline").map(Number))
          for (const m of offered("micro_batch").map(Number)) {
            const count = batch / ((gpus / (t * p)) * m);
            if (!offered("micro_batches").includes(String(count))) continue;
            for (const zero of offered("zero").map(Number))
              for (const recompute of offered("recompute")) {
                const one = {
                  ...chosen, tensor: t, pipeline: p, micro_batch: m, micro_batches: count,
                  zero, recompute,
                }; // prettier-ignore
                const { layout } = asked(one, all, labels);
                if (!layout) continue;
                const step = stepTime(network, layout, cluster, all.programs[chosen.program]);
                const fits = step.needed <= cluster.device.memory;
                if (fits && (!found || step.seconds < found.seconds))
                  found = { chosen: one, seconds: step.seconds };
              }
          }
      find("searched").textContent = found ? "" : labels["best none"];
      if (!found) return;
      for (const name of CHOICES) find(name).value = found.chosen[name];
      box.dispatchEvent(new Event("input"));
      show();
    };

    const controlled = Object.fromEntries(CHOICES.map((name) => [name, find(name)]));
    timeChart.share(box, "layout", controlled);
    find("best").addEventListener("click", best);
    for (const name of CHOICES) find(name).addEventListener("input", show);
    timeChart.keepDrawn(box, room, show);
  };

  addEventListener("DOMContentLoaded", () =>
    document.querySelectorAll(".step-calculator").forEach(start),
  );
})();
