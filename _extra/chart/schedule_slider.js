// The schedule slider: choose a schedule, devices and micro-batches, and see its chart.
// What it shows was played by the Python library (_ext/schedule_charts.py); nothing is
// computed here but where a box stands; chart.js draws it.
(() => {
  const SLOTS = { F: 1, B: 2, I: 1, W: 1 };
  const LEAST_SLOT = 6; // pixels a slot; where they do not fit, the chart scrolls

  // "F0 -3 B0" of a device with one stage: F0 from 0 to 1, B0 from 4 to 6.
  const boxesOf = (row, stages) => {
    let now = 0;
    const boxes = [];
    for (const word of row.split(" ")) {
      if (word[0] === "-") {
        now += Number(word.slice(1));
        continue;
      }
      const kind = word[0].toUpperCase();
      const start = now;
      now += SLOTS[kind] / stages;
      boxes.push({ kind, later: kind !== word[0], micro: word.slice(1), start, end: now });
    }
    return boxes;
  };

  const rounded = (x) => String(Math.round(10 * x) / 10);

  const factsOf = (chart, m) => {
    const [most, work] = [Math.max(...chart.held), 3 * m];
    return (
      `${rounded(100 * chart.idle)}% idle: the last device is done after ` +
      `${rounded(chart.end)} slots, and each works in ${work} of them. From its first ` +
      `computation to its last, a device takes ${rounded(chart.longest)} at most. ` +
      `It has at most ${rounded(most)} of ${m} micro-batches in flight.`
    );
  };

  const start = (box) => {
    const all = JSON.parse(box.querySelector("script").textContent);
    const find = (name) => box.querySelector(`[data-part="${name}"]`);
    const [schedule, devices, micros] = ["schedule", "devices", "micros"].map(find);
    const room = find("chart");

    const show = () => {
      const [p, m] = [all.devices[devices.value], all.microBatches[micros.value]];
      const chart = all.charts[schedule.value][`${p} ${m}`];
      for (const [slider, value] of [[devices, p], [micros, m]]) {
        slider.setAttribute("aria-valuetext", value);
        slider.nextElementSibling.textContent = value;
      }
      const lines = (texts) => texts.map((text) => `<div>${text}</div>`).join("");
      const word = box.clientWidth < 500 ? "" : "device "; // leaves a phone more room
      find("names").innerHTML = lines(chart.rows.map((_, d) => `${word}${d}`));
      find("held").innerHTML = lines(chart.held.map((n) => `holds ${rounded(n)}`));
      const rows = chart.rows.map((row) => boxesOf(row, all.stages[schedule.value]));
      const slot = Math.max(LEAST_SLOT, room.clientWidth / chart.end);
      room.innerHTML = timeChart.svg(rows, chart.end, slot, 1);
      timeChart.fade(room);
      find("facts").textContent = factsOf(chart, m);
      const kinds = new Set(chart.rows.join("").toUpperCase().match(/[FBIW]/g));
      for (const item of box.querySelectorAll("[data-kind]"))
        item.hidden = !kinds.has(item.dataset.kind);
      find("later").hidden = all.stages[schedule.value] === 1;
    };

    const lists = { devices: all.devices, micros: all.microBatches };
    timeChart.share(box, "schedule", { schedule, devices, micros }, lists);
    for (const control of [schedule, devices, micros])
      control.addEventListener("input", show);
    timeChart.keepDrawn(box, room, show);
  };

  addEventListener("DOMContentLoaded", () =>
    document.querySelectorAll(".schedule-slider").forEach(start),
  );
})();
