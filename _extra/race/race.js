// Race the all-reduces, then break one: two plans on one modeled clock. What they take,
// what the cells hold, and what is wrong are computed by model.js.
(() => {
  "use strict";
  const { rounds, broken, play, seconds, verify, replay, ranksOf } = raceModel;
  const NS = "http://www.w3.org/2000/svg";
  const LANES = ["upper", "lower"];
  const LASTS = 8000; // a race lasts so long on the screen, in ms
  const calm = matchMedia("(prefers-reduced-motion: reduce)");

  const svg = (name, attributes = {}, text) => {
    const element = document.createElementNS(NS, name);
    for (const key in attributes) element.setAttribute(key, attributes[key]);
    if (text !== undefined) element.textContent = text;
    return element;
  };
  const digits = (x) => x.toLocaleString("en", { maximumSignificantDigits: 3 });
  const unit = (x, names) => {
    const power = Math.min(names.length - 1, Math.max(0, Math.floor(Math.log10(x * 1.0005) / 3)));
    return `${digits(x / 1000 ** power)} ${names[power]}`;
  };
  const bytes = (x) => (x ? unit(x, ["B", "KB", "MB", "GB"]) : "0 B");
  const duration = (x) => (x < 1 ? unit(x * 1e6, ["µs", "ms"]) : `${digits(x)} s`);
  const several = (n, word) => `${n} ${word}${n === 1 ? "" : "s"}`;

  const start = (figure) => {
    const find = (part) => figure.querySelector(`[data-part="${part}"]`);
    const all = JSON.parse(find("head").textContent);
    const names = ["upper", "lower", "cluster", "ranks", "size", "lane", "message", "fault"];
    const controls = Object.fromEntries(names.map((name) => [name, find(name)]));
    const [slider, playButton, now, told] = ["slider", "play", "now", "told"].map(find);
    let race, time = 0, frame = null, breaking = "", touched = false, drawn = 0;

    const chosen = () => {
      const [n, size] = [Number(controls.ranks.value), all.sizes[controls.size.value]];
      const cluster = all.clusters[controls.cluster.value];
      return { n, size, length: size / 4, cluster };
    };
    const planOf = (name, n, cluster) =>
      all.plans[`${name} ${n}${name === "hierarchical" ? ` ${cluster.per_node}` : ""}`];

    // -- a race: both plans, played ---------------------------------------------------
    const laneOf = (part, { n, length, cluster }, fault) => {
      const name = controls[part].value;
      const intact = rounds(planOf(name, n, cluster), length);
      const planned = play(intact, cluster).messages;
      const table = fault ? broken(intact, fault.number, fault.kind) : intact;
      const played = play(table, cluster);
      const { messages } = played;
      const sent = Array(n).fill(0);
      for (const m of messages) sent[m.source] += m.size;
      return {
        part, name, fault, planned, messages, n, length, seconds: played.seconds,
        wrong: verify(table, n, length), replay: replay(messages, n, length),
        rounds: intact.length, most: Math.max(...sent),
        // Where the message is drawn that the reader has chosen.
        broke: fault && (messages.find((m) => m.wrong) ?? planned[fault.number]),
      };
    };

    // The ranks that the chosen message may go to instead.
    const offerFaults = (n, { source, target }) => {
      for (const option of controls.fault.options) {
        const rank = Number(option.value);
        option.hidden = option.disabled = rank >= n || rank === source || rank === target;
      }
      if (controls.fault.selectedOptions[0].disabled) controls.fault.value = "none";
    };

    const prepare = () => {
      const about = chosen();
      const sent = rounds(planOf(controls[controls.lane.value].value, about.n, about.cluster),
        about.length).flat();
      controls.message.max = sent.length;
      if (Number(controls.message.value) > sent.length) controls.message.value = sent.length;
      const number = Number(controls.message.value) - 1;
      offerFaults(about.n, sent[number]);
      const fault = controls.fault.value === "none" ? null : { number, kind: controls.fault.value };
      const lanes = LANES.map((part) =>
        laneOf(part, about, part === controls.lane.value ? fault : null));
      race = { ...about, fault, lanes, end: Math.max(...lanes.map((lane) => lane.seconds)) };
      race.events = [...new Set([0, ...lanes.flatMap((l) => l.messages.map((m) => m.end))])]
        .sort((a, b) => a - b);
      race.most = Math.max(...lanes.map((lane) => lane.most));
    };

    // -- the picture of a lane ----------------------------------------------------------
    const draw = (lane) => {
      const box = find(`${lane.part}-picture`);
      const [room, n] = [box.clientWidth || 640, lane.n];
      const narrow = room < 520;
      const row = narrow ? (n <= 8 ? 21 : 17) : n <= 4 ? 34 : n <= 8 ? 26 : n <= 12 ? 21 : 18;
      const left = narrow ? 20 : 54;
      const cells = (room - left) * (narrow ? 0.47 : 0.42);
      const right = left + cells + 14;
      const width = room - right - 8;
      const [top, tall] = [4, row - 9];
      const height = top + row * n + 20;
      const x = (t) => right + (width * t) / race.end;
      const y = (rank) => top + row * rank + tall / 2;
      const place = (element) => left + (cells * element) / lane.length;
      const way = (m) => `M${x(m.begin).toFixed(1)} ${y(m.source)}L${x(m.end).toFixed(1)} ${y(m.target)}`;
      const drawing = svg("svg", {
        viewBox: `0 0 ${room} ${height}`, width: room, height, role: "img",
        "aria-label": `${all.names[lane.name]}: left, what each of ${n} ranks holds and has sent; ` +
          "right, its messages over time. The text below says the same of each moment.",
      });
      const clip = svg("clipPath", { id: `race-${lane.part}` });
      const past = svg("rect", { x: right - 3, y: 0, width: 0, height });
      clip.append(past);
      drawing.append(clip);
      const { edges } = lane.replay;
      const grid = [], bars = [];
      for (let rank = 0; rank < n; rank++) {
        drawing.append(
          svg("text", { x: left - 6, y: y(rank) + 4, class: "name" }, narrow ? rank : `rank ${rank}`),
          svg("rect", { x: left, y: y(rank) + tall / 2 + 2, width: cells, height: 3, class: "room" }),
        );
        bars.push(svg("rect", { x: left, y: y(rank) + tall / 2 + 2, width: 0, height: 3, class: "bar" }));
        drawing.append(bars[rank]);
        grid.push(edges.slice(0, -1).map((edge, i) => {
          const [from, to] = [place(edge), place(edges[i + 1])];
          const rect = svg("rect", { x: from.toFixed(1), y: y(rank) - tall / 2,
            width: (to - from).toFixed(1), height: tall, class: "cell" });
          const text = svg("text", { x: ((from + to) / 2).toFixed(1), y: y(rank) + 4, class: "held" });
          drawing.append(rect, text);
          return { rect, text, fits: (to - from - 2) / 6.6 };
        }));
      }
      const later = svg("g", { class: "ghost", "data-part": "all" });
      later.append(svg("path", { d: lane.messages.map(way).join("") }));
      const done = svg("g", { "clip-path": `url(#race-${lane.part})` });
      for (let rank = 0; rank < n; rank++) {
        const path = lane.messages.filter((m) => m.source === rank).map(way).join("");
        const opacity = Math.max(0.35, Math.min(1, 60 / lane.messages.length));
        if (path) done.append(svg("path", { d: path, class: `sent d${rank % 8}`, opacity }));
      }
      const extra = svg("g"), moving = svg("g");
      if (controls.lane.value === lane.part && touched)
        extra.append(svg("path", { d: way(lane.planned[controls.message.value - 1]), class: "picked" }));
      if (lane.broke)
        extra.append(svg("path", { d: way(lane.broke), class: `fault ${lane.fault.kind}` }));
      const finish = { x1: x(lane.seconds), x2: x(lane.seconds), y1: 0, y2: height - 16, class: "grid" };
      const near = lane.seconds < race.end * 0.75;
      drawing.append(
        later, done, extra, svg("line", finish),
        svg("text", { x: x(lane.seconds), y: height - 4, class: near ? "middle" : "end" },
          duration(lane.seconds)),
      );
      if (room > 420) drawing.append(svg("text", { x: left, y: height - 4 }, "cells: ranks in the sum; bar: sent"));
      const line = svg("line", { class: "head", y1: 0, y2: height - 18 });
      const mark = svg("rect", { class: "told", y: y(lane.wrong?.rank ?? 0) - tall / 2, height: tall });
      if (lane.wrong) {
        mark.setAttribute("x", place(lane.wrong.first));
        mark.setAttribute("width", Math.max(3, place(lane.wrong.last) - place(lane.wrong.first)));
      }
      drawing.append(line, moving, mark);
      drawing.onclick = (event) => pick(lane, event);
      box.replaceChildren(drawing);
      lane.drawn = { x, y, left: right, cells, past, grid, bars, moving, line, mark, way };
    };

    // "013": the sum of ranks 0, 1 and 3; where this does not fit, 3/8 of all.
    const contents = ([held, twice], n, fits) => {
      const ranks = ranksOf(held).flatMap((r) => (twice & (1 << r) ? [r, r] : [r]));
      const complete = held === 2 ** n - 1 && !twice;
      const words = complete ? ["all"] : [ranks.join(n > 10 ? "," : ""), `${ranks.length}/${n}`];
      return words.find((text) => text.length <= fits) ?? "";
    };

    // What a lane shows at a time.
    const place = (lane) => {
      const { x, y, left, cells, past, grid, bars, moving, line, mark } = lane.drawn;
      const { n } = lane;
      const at = Math.min(time, lane.seconds);
      const over = time >= lane.seconds;
      lane.held = lane.replay.at(time);
      lane.held.forEach((row, rank) => row.forEach((cell, i) => {
        const { rect, text, fits } = grid[rank][i];
        const count = ranksOf(cell[0]).length;
        const kind = cell[1] || (over && count < n) ? " bad" : count === n ? " all" : "";
        rect.setAttribute("class", `cell${kind}`);
        rect.style.fillOpacity = kind ? 1 : 0.1 + (0.35 * (count - 1)) / Math.max(1, n - 2);
        text.setAttribute("class", `held${kind}`);
        text.textContent = contents(cell, n, fits);
      }));
      const sent = Array(n).fill(0);
      const dots = [];
      for (const m of lane.messages) {
        const share = Math.max(0, Math.min(1, (time - m.begin) / (m.end - m.begin)));
        sent[m.source] += share * m.size;
        if (share > 0 && share < 1) {
          const [x0, y0, x1] = [x(m.begin), y(m.source), x(at)];
          const y1 = y0 + share * (y(m.target) - y0);
          dots.push(
            svg("line", { x1: x0, y1: y0, x2: x1, y2: y1, class: `way d${m.source % 8}` }),
            svg("circle", { cx: x1, cy: y1, r: 4, class: `dot d${m.source % 8}` }),
          );
        }
      }
      moving.replaceChildren(...dots);
      lane.flying = dots.length / 2;
      lane.sent = Math.max(...sent);
      bars.forEach((bar, rank) => bar.setAttribute("width", ((cells * sent[rank]) / race.most).toFixed(1)));
      past.setAttribute("width", time ? x(at) - left + 3 : 0);
      line.setAttribute("x1", x(at));
      line.setAttribute("x2", x(at));
      mark.style.display = lane.wrong && time >= lane.broke.begin ? "" : "none";
      mark.classList.toggle("over", over);
    };

    // -- words --------------------------------------------------------------------------
    const state = (lane) => {
      const name = all.names[lane.name];
      if (time >= lane.seconds)
        return `${name}: done at ${duration(lane.seconds)}${lane.wrong ? ", with a wrong sum" : ""}.`;
      const arrived = lane.messages.filter((m) => m.end <= time).length;
      const current = lane.messages.find((m) => m.end > time);
      const complete = lane.held.filter((row) => row.every(([set]) => set === 2 ** lane.n - 1)).length;
      return `${name}: round ${current.round + 1} of ${lane.rounds}, ${several(lane.flying, "message")} under way, ` +
        `${arrived} of ${lane.messages.length} arrived, ` +
        `${complete} of ${lane.n} ranks have the sum, the busiest has sent ${bytes(lane.sent)}.`;
    };

    const show = (speak = true) => {
      race.lanes.forEach(place);
      slider.value = Math.round((1000 * time) / race.end);
      const words = `At ${time ? duration(time) : "0"} of ${duration(race.end)}. ` +
        race.lanes.map(state).join(" ");
      if (now.textContent !== words) now.textContent = words;
      if (speak) slider.setAttribute("aria-valuetext", words);
    };

    const say = () => {
      for (const lane of race.lanes) {
        const title = find(`${lane.part}-title`);
        title.dataset.seconds = lane.seconds;
        title.replaceChildren(
          Object.assign(document.createElement("b"), { textContent: all.names[lane.name] }),
          `: ${duration(lane.seconds)}, ${several(lane.rounds, "round")}, ` +
            `${several(lane.messages.length, "message")}; the busiest rank sends ${bytes(lane.most)}`,
        );
      }
      const lane = race.lanes[LANES.indexOf(controls.lane.value)];
      const m = lane.planned[controls.message.value - 1];
      told.textContent = `Round ${m.round + 1}: rank ${m.source} ${m.add ? "adds" : "copies"} ` +
        `elements ${m.first.toLocaleString("en")} to ${m.last.toLocaleString("en")} to rank ${m.target}.`;
      controls.message.setAttribute("aria-valuetext", `${controls.message.value}. ${told.textContent}`);
      find("message-value").textContent = `${controls.message.value} of ${controls.message.max}`;
      const wrong = race.lanes.find((one) => one.wrong)?.wrong;
      const result = find("result");
      result.textContent = wrong
        ? `verify: ${wrong.words}.`
        : race.fault
          ? "verify: right all the same. Every sum arrives, if by another way."
          : "verify: both plans are right. Click a line to drop its message.";
      result.classList.toggle("wrong", Boolean(wrong));
      for (const name of ["ranks", "size"]) {
        const value = name === "size" ? bytes(race.size) : race.n;
        find(`${name}-value`).textContent = value;
        controls[name].setAttribute("aria-valuetext", value);
      }
    };

    // -- the two curves -----------------------------------------------------------------
    const known = new Map(); // while the size is dragged, the curves stay
    const timeOf = (name, size) => {
      const key = [name, race.n, controls.cluster.value, size].join();
      if (!known.has(key)) {
        const plan = planOf(name, race.n, race.cluster);
        known.set(key, seconds(plan, Math.round(size / 4), race.cluster));
      }
      return known.get(key);
    };
    const timesOf = (size) => LANES.map((part) => timeOf(controls[part].value, size));
    const ahead = (size) => {
      const [a, b] = timesOf(size);
      return Math.abs(a - b) <= 1e-9 * b ? -1 : a < b ? 0 : 1; // which lane is faster
    };
    // Who is faster up to which size: [[lane, first size]], by halving an interval.
    const stretches = (sizes) => {
      const found = [[ahead(sizes[0]), sizes[0]]];
      for (let i = 1; i < sizes.length; i++) {
        const before = found[found.length - 1][0];
        if (ahead(sizes[i]) === before) continue;
        let [low, high] = [sizes[i - 1], sizes[i]];
        while (high / low > 1.001) {
          const middle = Math.sqrt(low * high);
          if (ahead(middle) === before) low = middle;
          else high = middle;
        }
        found.push([ahead(sizes[i]), high]);
      }
      return found;
    };

    const drawCurves = () => {
      const box = find("curves");
      const [room, height] = [box.clientWidth || 640, 190];
      const [left, right, top, bottom] = [58, 14, 10, 24];
      const sizes = Array.from({ length: 37 }, (_, i) => 10 ** (3 + i / 6));
      const values = sizes.map(timesOf);
      const low = Math.floor(Math.log10(Math.min(...values.flat())));
      const high = Math.ceil(Math.log10(Math.max(...values.flat())));
      const x = (size) => left + ((Math.log10(size) - 3) / 6) * (room - left - right);
      const y = (t) => height - bottom - ((Math.log10(t) - low) / (high - low)) * (height - top - bottom);
      const drawing = svg("svg", { viewBox: `0 0 ${room} ${height}`, width: room, height, role: "img",
        "aria-label": "Time of both plans by the size of the vector; the table below holds the numbers." });
      for (const size of all.table) {
        drawing.append(svg("line", { x1: x(size), x2: x(size), y1: top, y2: height - bottom, class: "grid" }));
        if (room > 520 || Math.log10(size) % 3 === 0)
          drawing.append(svg("text", { x: x(size), y: height - 8, class: { 1e3: "", 1e9: "end" }[size] ?? "middle" }, bytes(size)));
      }
      for (let power = low; power <= high; power++) {
        const at = y(10 ** power);
        drawing.append(svg("line", { x1: left, x2: room - right, y1: at, y2: at, class: "grid" }));
        if (power % 2 === 0 || high - low < 5)
          drawing.append(svg("text", { x: left - 6, y: at + 4, class: "end" }, duration(10 ** power)));
      }
      drawing.append(svg("line", { x1: x(race.size), x2: x(race.size), y1: top, y2: height - bottom, class: "head" }));
      LANES.forEach((part, i) => {
        const points = sizes.map((size, k) => `${x(size).toFixed(1)} ${y(values[k][i]).toFixed(1)}`);
        drawing.append(svg("path", { d: `M${points.join("L")}`, class: `curve ${part}` }));
        drawing.append(svg("circle", { cx: x(race.size), cy: y(timesOf(race.size)[i]), r: 5, class: `at ${part}` }));
      });
      const found = stretches(sizes);
      for (const [, size] of found.slice(1))
        drawing.append(svg("circle", { cx: x(size), cy: y(timesOf(size)[0]), r: 7, class: "cross" }));
      box.replaceChildren(drawing);
      const name = (lane) => all.said[controls[LANES[lane]].value];
      const faster = (lane) => (lane < 0 ? "both take equally long" : `${name(lane)} is faster`);
      const parts = found.map(([lane, from], i) => {
        const until = found[i + 1]?.[1];
        if (found.length === 1) return `${faster(lane)} at every size`;
        if (!i) return `${faster(lane)} below ${bytes(until)}`;
        return `${faster(lane)} from ${bytes(from)}${until ? ` to ${bytes(until)}` : " on"}`;
      });
      const [a, b] = timesOf(race.size);
      const gap = Math.max(a / b, b / a);
      find("crossing").textContent = `On ${race.n} ranks, ${parts.join(", ")}.` +
        (gap > 1.005 ? ` At ${bytes(race.size)}, ${name(a < b ? 0 : 1)} is ${digits(gap)} times as fast.` : "");
    };

    const drawTable = () => {
      find("summary").textContent = `Times in ms on ${race.n} ranks, ${race.cluster.title}`;
      [...find("times").rows].forEach((row, i) => {
        all.table.forEach((size, k) => {
          row.cells[k + 1].textContent = digits(1e3 * timeOf(Object.keys(all.names)[i], size));
        });
      });
    };

    // -- playing ------------------------------------------------------------------------
    const stop = () => {
      if (frame !== null) cancelAnimationFrame(frame), clearTimeout(frame);
      frame = null;
      playButton.textContent = "Play";
      now.setAttribute("aria-live", "polite"); // playing, it would talk without end
    };
    const go = (to) => {
      stop();
      time = Math.max(0, Math.min(race.end, to));
      show();
    };
    const next = () => race.events.find((t) => t > time * (1 + 1e-9)) ?? race.end;
    const back = () => race.events.findLast((t) => t < time * (1 - 1e-9)) ?? 0;

    const toggle = () => {
      if (frame !== null) return go(time);
      if (time >= race.end) time = 0;
      playButton.textContent = "Pause";
      now.setAttribute("aria-live", "off");
      let before = null;
      const tick = (moment) => {
        time += before === null ? 0 : (race.end * (moment - before)) / LASTS;
        before = moment;
        if (time >= race.end) return go(race.end);
        show(false);
        frame = requestAnimationFrame(tick);
      };
      const step = () => {
        time = next();
        if (time >= race.end) return go(race.end);
        show();
        frame = setTimeout(step, 700);
      };
      if (calm.matches) step();
      else frame = requestAnimationFrame(tick);
    };

    // -- choosing and breaking ----------------------------------------------------------
    const pick = (lane, event) => {
      const box = find(`${lane.part}-picture`).getBoundingClientRect();
      const [px, py] = [event.clientX - box.left, event.clientY - box.top];
      const { x, y } = lane.drawn;
      const distance = (m) => {
        const [x0, x1, y0, y1] = [x(m.begin), x(m.end), y(m.source), y(m.target)];
        const along = ((px - x0) * (x1 - x0) + (py - y0) * (y1 - y0)) /
          ((x1 - x0) ** 2 + (y1 - y0) ** 2);
        const share = Math.max(0, Math.min(1, along));
        return Math.hypot(px - x0 - share * (x1 - x0), py - y0 - share * (y1 - y0));
      };
      const distances = lane.planned.map(distance);
      const near = Math.min(...distances);
      if (near > 12) return;
      controls.lane.value = lane.part;
      controls.message.max = lane.planned.length;
      controls.message.value = distances.indexOf(near) + 1;
      if (controls.fault.value === "none") controls.fault.value = "drop";
      controls.message.dispatchEvent(new Event("input", { bubbles: true }));
    };

    const choose = () => {
      stop();
      prepare();
      const now = ["lane", "message", "fault"].map((name) => controls[name].value).join(" ");
      touched ||= Boolean(breaking) && now !== breaking;
      // A new fault is shown at the end, where all that it did is in red.
      time = race.fault && now !== breaking ? race.end : Math.min(time, race.end);
      breaking = now;
      redraw();
      drawTable();
      say();
    };
    const redraw = () => {
      drawn = find("upper-picture").clientWidth;
      race.lanes.forEach(draw);
      drawCurves();
      show();
    };

    for (const part of LANES)
      for (const name in all.names) controls[part].add(new Option(all.names[name], name));
    for (const key in all.clusters) controls.cluster.add(new Option(all.clusters[key].title, key));
    for (const part of LANES) controls.lane.add(new Option(`${part} plan`, part));
    const faults = { none: "as planned", drop: "dropped", double: "sent twice" };
    for (let rank = 0; rank < 16; rank++) faults[rank] = `sent to rank ${rank}`;
    // In this order: numbers come first among the keys of an object.
    for (const kind of ["none", "drop", "double", ...Array(16).keys()])
      controls.fault.add(new Option(faults[kind], kind));
    for (const name in all.first) controls[name].value = all.first[name];
    timeChart.share(figure, "race", controls, { size: all.sizes });

    for (const part of ["controls", "breaking", "told", "result", "crossing", "by-size"])
      find(part).hidden = false;
    find("by-size").open = innerWidth > 500; // on a telephone the sentence above is enough
    find("by-size").ontoggle = drawCurves;
    for (const name of names) controls[name].addEventListener("input", choose);
    playButton.onclick = toggle;
    find("back").onclick = () => go(back());
    find("next").onclick = () => go(next());
    slider.oninput = (event) => {
      event.stopPropagation(); // the moment is no part of the address
      go((race.end * slider.value) / 1000);
    };
    figure.addEventListener("keydown", (event) => {
      const moves = { ArrowLeft: () => go(back()), ArrowRight: () => go(next()),
        Home: () => go(0), End: () => go(race.end), " ": toggle };
      if (event.target !== figure || event.ctrlKey || event.metaKey || event.altKey) return;
      if (!moves[event.key]) return;
      event.preventDefault();
      moves[event.key]();
    });
    new ResizeObserver(() => {
      if (race && Math.abs(find("upper-picture").clientWidth - drawn) >= 1) redraw();
    }).observe(find("upper-picture"));
    choose();
    if (race.fault === null) go(race.end * 0.4);
    figure.dataset.ready = "yes";
  };

  const begin = () => document.querySelectorAll(".race").forEach(start);
  if (document.readyState === "loading") addEventListener("DOMContentLoaded", begin);
  else begin();
})();
