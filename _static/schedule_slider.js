// The schedule slider: choose a schedule, devices and micro-batches, and see its chart.
// What it shows was played by the Python library (tools/schedule_vectors.py); nothing is
// computed here but where a box stands.
(() => {
  const SLOTS = { F: 1, B: 2, I: 1, W: 1 };
  const ROW = 30; // height of a row, in pixels
  const AXIS = 22; // and of the time axis below
  const LEAST_SLOT = 9; // pixels a slot; where they do not fit, the chart scrolls
  const DIGIT = 6.5; // width of a digit in a box

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

  const rect = (cls, x, y, width, height) =>
    `<rect class="${cls}" x="${x}" y="${y}" width="${width}" height="${height}"/>`;

  const boxSvg = (box, row, slot) => {
    const [x, y] = [box.start * slot, row * ROW + 2];
    const [width, height] = [(box.end - box.start) * slot, ROW - 4];
    const fits = width > DIGIT * box.micro.length + 1;
    return (
      rect(box.kind, x, y, width, height) +
      (box.later ? rect("later", x, y + height - 4, width, 4) : "") +
      (fits
        ? `<text class="${box.kind}" x="${x + width / 2}" y="${y + 17}">${box.micro}</text>`
        : "")
    );
  };

  const axisSvg = (end, slot, top) => {
    const step = [1, 2, 5, 10, 20, 50, 100].find((n) => n * slot >= 40);
    let marks = "";
    for (let time = 0; time < end; time += step)
      marks +=
        `<line x1="${time * slot}" x2="${time * slot}" y1="${top}" y2="${top + 4}"/>` +
        `<text class="time" x="${time * slot + 2}" y="${top + 16}">${time}</text>`;
    return marks;
  };

  const chartSvg = (chart, stages, width) => {
    const slot = Math.max(LEAST_SLOT, width / chart.end);
    const [wide, top] = [chart.end * slot, chart.rows.length * ROW];
    const rows = chart.rows.map(
      (row, d) =>
        rect("idle", 0, d * ROW + 2, wide, ROW - 4) +
        boxesOf(row, stages)
          .map((box) => boxSvg(box, d, slot))
          .join(""),
    );
    return (
      `<svg width="${wide}" height="${top + AXIS}" aria-hidden="true">` +
      `${rows.join("")}${axisSvg(chart.end, slot, top)}</svg>`
    );
  };

  const rounded = (x) => String(Math.round(10 * x) / 10);

  const factsOf = (chart, m) => {
    const [most, work] = [Math.max(...chart.held), 3 * m];
    return (
      `${rounded(100 * chart.idle)} % idle: the last device is done after ` +
      `${rounded(chart.end)} slots, and each works in ${work} of them. From its first ` +
      `computation to its last, a device takes ${rounded(chart.longest)} at most. ` +
      `It holds ${rounded(most)} of ${m} micro-batches at most.`
    );
  };

  const start = (box) => {
    const all = JSON.parse(box.querySelector("script").textContent);
    const find = (name) => box.querySelector(`[data-part="${name}"]`);
    const [schedule, devices, micros] = ["schedule", "devices", "micros"].map(find);
    const room = find("chart");
    const fade = () => {
      const behind = room.scrollWidth - room.clientWidth - room.scrollLeft;
      room.classList.toggle("more", behind > 1);
    };

    const show = () => {
      const [p, m] = [all.devices[devices.value], all.microBatches[micros.value]];
      const chart = all.charts[schedule.value][`${p} ${m}`];
      for (const [slider, value] of [[devices, p], [micros, m]]) {
        slider.setAttribute("aria-valuetext", value);
        slider.nextElementSibling.textContent = value;
      }
      const lines = (texts) => texts.map((text) => `<div>${text}</div>`).join("");
      find("names").innerHTML = lines(chart.rows.map((_, d) => `device ${d}`));
      find("held").innerHTML = lines(chart.held.map((n) => `holds ${rounded(n)}`));
      room.innerHTML = chartSvg(chart, all.stages[schedule.value], room.clientWidth);
      fade();
      find("facts").textContent = factsOf(chart, m);
      const kinds = new Set(chart.rows.join("").toUpperCase().match(/[FBIW]/g));
      for (const item of box.querySelectorAll("[data-kind]"))
        item.hidden = !kinds.has(item.dataset.kind);
      find("later").hidden = all.stages[schedule.value] === 1;
    };

    for (const control of [schedule, devices, micros])
      control.addEventListener("input", show);
    room.addEventListener("scroll", fade);
    show();
    let width = box.clientWidth;
    new ResizeObserver(() => {
      if (box.clientWidth === width) return; // only the height is another, by our doing
      width = box.clientWidth;
      show();
    }).observe(box);
  };

  if (typeof module !== "undefined") module.exports = { boxesOf };
  else
    addEventListener("DOMContentLoaded", () =>
      document.querySelectorAll(".schedule-slider").forEach(start),
    );
})();
