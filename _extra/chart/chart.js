// Charts over time, as SVG: rows of boxes and an axis below. The schedule slider and the
// step calculator draw with it; what a box says and where it stands is theirs.
globalThis.timeChart = (() => {
  const ROW = 30; // height of a row, in pixels
  const AXIS = 22; // and of the time axis below
  const DIGIT = 6.5; // width of a character in a box

  const rect = (cls, x, y, width, height) =>
    `<rect class="${cls}" x="${x}" y="${y}" width="${width}" height="${height}"/>`;

  // {kind, later, micro, start, end}: micro is what stands in it, if it fits.
  const boxSvg = (box, row, scale) => {
    const [x, y] = [box.start * scale, row * ROW + 2];
    const [width, height] = [(box.end - box.start) * scale, ROW - 4];
    const fits = width > DIGIT * box.micro.length + 2; // numbers keep apart
    return (
      rect(box.kind, x, y, width, height) +
      (box.later ? rect("later", x, y + height - 4, width, 4) : "") +
      (fits
        ? `<text class="${box.kind}" x="${x + width / 2}" y="${y + 17}">${box.micro}</text>`
        : "")
    );
  };

  // The smallest of 1, 2, 5, 10, 20, ... times a power of ten that is not below x.
  const round = (x) => {
    const power = 10 ** Math.floor(Math.log10(x));
    return [1, 2, 5, 10].map((n) => n * power).find((n) => n >= x * (1 - 1e-9));
  };

  const axisSvg = (end, scale, top, finest, write) => {
    let step = Math.max(finest, round(40 / scale));
    while (step * scale < DIGIT * write(step).length + 12) step = round(1.01 * step);
    let marks = "";
    for (let i = 0; i * step < end; i += 1) {
      const [x, word] = [i * step * scale, write(i * step)];
      marks += `<line x1="${x}" x2="${x}" y1="${top}" y2="${top + 4}"/>`;
      if (x + 2 + DIGIT * word.length <= end * scale)
        marks += `<text class="time" x="${x + 2}" y="${top + 16}">${word}</text>`;
    }
    return marks;
  };

  // rows: lists of boxes; scale: pixels a unit of time; finest: the least distance of
  // two marks; write: what stands at a mark.
  const svg = (rows, end, scale, finest = 0, write = String) => {
    const [wide, top] = [end * scale, rows.length * ROW];
    const drawn = rows.map(
      (boxes, d) =>
        rect("idle", 0, d * ROW + 2, wide, ROW - 4) +
        boxes.map((box) => boxSvg(box, d, scale)).join(""),
    );
    return (
      `<svg width="${wide}" height="${top + AXIS}" aria-hidden="true">` +
      `${drawn.join("")}${axisSvg(end, scale, top, finest, write)}</svg>`
    );
  };

  // A chart that is wider than its room scrolls, and fades where more of it lies.
  const fade = (room) => {
    const behind = room.scrollWidth - room.clientWidth - room.scrollLeft;
    room.classList.toggle("more", behind > 1);
  };

  // Draw now, and again whenever the box gets another width (not only another height).
  const keepDrawn = (box, room, show) => {
    room.addEventListener("scroll", () => fade(room));
    show();
    let width = box.clientWidth;
    new ResizeObserver(() => {
      if (box.clientWidth === width) return;
      width = box.clientWidth;
      show();
    }).observe(box);
  };

  // Keep what is chosen in the page's address, `#layout&gpus=64`, and take it from there.
  // `lists`: for a slider over the places of a list, that list.
  const share = (box, name, controls, lists = {}) => {
    const written = (key) => lists[key]?.[controls[key].value] ?? controls[key].value;
    const asked = new URLSearchParams(location.hash.split("&").slice(1).join("&"));
    if (location.hash.split("&")[0] === `#${name}`) {
      for (const [key, value] of asked) {
        if (!controls[key]) continue;
        const options = [...(controls[key].options ?? [])].map((one) => one.value);
        const place = lists[key]?.findIndex((one) => String(one) === value) ?? value;
        if (place !== -1 && (!options.length || options.includes(value)))
          controls[key].value = place;
      }
      requestAnimationFrame(() => box.scrollIntoView({ block: "center" }));
    }
    box.addEventListener("input", () => {
      const chosen = new URLSearchParams();
      for (const key in controls) chosen.set(key, written(key));
      history.replaceState(null, "", `#${name}&${chosen}`);
    });
  };

  return { svg, fade, keepDrawn, share };
})();
