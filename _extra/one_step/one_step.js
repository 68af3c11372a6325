// One step, message by message: plays the runs that _ext/recorded_steps.py records.
// Computed here is only where things stand at a time; every number is of a run.
(() => {
  "use strict";
  const KINDS = { F: "forward", R: "forward again", B: "backward", U: "update" };
  const SAME = 0.0021; // times this near are one: they were rounded to 0.001
  const NS = "http://www.w3.org/2000/svg";
  const calm = matchMedia("(prefers-reduced-motion: reduce)");

  const svg = (name, attributes = {}, text) => {
    const element = document.createElementNS(NS, name);
    for (const key in attributes) element.setAttribute(key, attributes[key]);
    if (text !== undefined) element.textContent = text;
    return element;
  };
  const cell = (name, className, text) => {
    const element = document.createElement(name);
    if (className) element.className = className;
    if (text !== undefined) element.textContent = text;
    return element;
  };
  const bytes = (n) => {
    if (n < 1000) return `${n} B`;
    const [size, unit] = n < 1e6 ? [n / 1e3, "kB"] : [n / 1e6, "MB"];
    return `${size.toFixed(size < 9.95 ? 1 : 0)} ${unit}`;
  };
  const several = (n, word) => `${n} ${word}${n === 1 ? "" : "s"}`;
  const percent = (x) => `${Math.round(100 * x)}%`;
  // 0, 1, 2, 3, 6 -> "0 to 3, 6"
  const ranges = (numbers) => {
    const runs = [];
    for (const n of [...new Set(numbers)].sort((a, b) => a - b)) {
      const last = runs[runs.length - 1];
      if (last && last[1] === n - 1) last[1] = n;
      else runs.push([n, n]);
    }
    return runs.map(([a, b]) => (a === b ? `${a}` : `${a} to ${b}`)).join(", ");
  };

  // The rows of a run as objects, and the frames: the times at which something begins.
  const unpack = (run) => {
    const blocks = run.blocks.map(([device, start, end, kind, n]) => ({
      device, start, end, kind, n,
    }));
    const messages = run.messages.map(
      ([source, target, start, end, size, what, round, line], i) => ({
        source, target, start, end, size, round,
        number: i + 1, what: run.what[what], line: run.lines[line],
      }),
    );
    const starts = [...blocks, ...messages].map((e) => e.start).sort((a, b) => a - b);
    const frames = [0];
    for (const t of [...starts, run.end])
      if (t > frames[frames.length - 1] + SAME) frames.push(t);
    if (run.end > frames[frames.length - 1]) frames[frames.length - 1] = run.end;
    return { ...run, blocks, messages, frames };
  };

  // What is known of every device at a time.
  const countersAt = (run, t) => {
    const counters = Array.from({ length: run.devices }, (_, d) => {
      const memory = run.memory[d].filter(([time]) => time <= t + SAME).pop();
      return { sent: 0, weights: memory[1], activations: memory[2], busy: 0, idle: 0 };
    });
    for (const m of run.messages) if (m.end <= t + SAME) counters[m.source].sent += m.size;
    for (const b of run.blocks)
      if (b.start < t) counters[b.device].busy += Math.min(b.end, t) - b.start;
    for (const c of counters) c.idle = t > SAME ? Math.max(0, 1 - c.busy / t) : 0;
    return counters;
  };

  const purpose = (m) => m.what + (m.round ? `, round ${m.round}` : "");

  // What happens between two times, in one sentence.
  const sentence = (run, from, to) => {
    const during = (e) => e.start < to - SAME && e.end > from + SAME;
    const works = new Map();
    for (const b of run.blocks.filter(during)) {
      const name = b.kind === "U" ? KINDS.U : `${KINDS[b.kind]}, ${run.each} ${b.n}`;
      works.set(name, [...(works.get(name) || []), b.device]);
    }
    const parts = [...works].map(
      ([name, on]) => `${name} (device${on.length > 1 ? "s" : ""} ${ranges(on)})`,
    );
    const sent = run.messages.filter(during);
    if (sent.length) {
      const sizes = sent.map((m) => m.size);
      const [min, max] = [bytes(Math.min(...sizes)), bytes(Math.max(...sizes))];
      const whats = [...new Set(sent.map((m) => m.what))].join(" and ");
      const rounds = ranges(sent.map((m) => m.round));
      parts.push(
        `${several(sent.length, "message")} ` +
          `(${whats}${rounds === "0" ? "" : `, round ${rounds}`}), ` +
          `${min === max ? min : `${min} to ${max}`}${sent.length > 1 ? " each" : ""}: ` +
          sent.slice(0, 8).map((m) => `${m.source}→${m.target}`).join(" ") +
          (sent.length > 8 ? " …" : ""),
      );
    }
    const text = parts.join("; ") || "Nothing: every device is idle";
    return `${text[0].toUpperCase()}${text.slice(1)}.`;
  };

  // Runs come as scripts, because a page that is opened as a file may fetch nothing else.
  const runs = {}, waiting = {};
  const load = (folder, name) =>
    new Promise((resolve, reject) => {
      if (runs[name]) return resolve(runs[name]);
      const script = document.createElement("script");
      script.src = `${folder}${name.replace(" ", "-")}.js`;
      script.onerror = () => reject(new Error(`cannot load ${script.src}`));
      (waiting[name] ||= []).push(resolve);
      document.head.append(script);
    });
  window.oneStep = {
    loaded: (name, run) => {
      runs[name] = unpack(run);
      for (const resolve of waiting[name] || []) resolve(runs[name]);
      delete waiting[name];
    },
  };

  const start = (figure, number) => {
    const find = (part) => figure.querySelector(`[data-part="${part}"]`);
    const head = JSON.parse(find("head").textContent);
    const [strategy, devices, play, slider] = ["strategy", "devices", "play", "slider"].map(find);
    const [picture, now, result] = ["picture", "now", "result"].map(find);
    const [table, details, link] = ["messages", "details", "link"].map(find);
    const counters = find("counters").tBodies[0];
    let run, parts, timer = null, frame = 0, room = 0, touched = false;

    // -- the picture ----------------------------------------------------------------
    const draw = () => {
      room = picture.clientWidth || 640;
      const row = head.rows[run.devices];
      const [left, right, top] = [room < 520 ? 22 : 72, 10, 6];
      const width = room - left - right;
      const height = top + row * run.devices + 22;
      const x = (t) => left + (width * t) / run.end;
      const y = (d) => top + row * (d + 0.5);
      const drawing = svg("svg", {
        viewBox: `0 0 ${room} ${height}`, width: room, height, role: "img",
        "aria-label":
          `${head.strategies[strategy.value].title} on ${run.devices} devices: ` +
          "computations and messages",
      });
      const id = `one-step-past-${number}`;
      const clip = svg("clipPath", { id });
      const past = svg("rect", { x: left - 1, y: 0, width: 0, height });
      clip.append(past);
      const rows = svg("g");
      for (let d = 0; d < run.devices; d++) {
        rows.append(
          svg("line", { x1: left, x2: room - right, y1: y(d), y2: y(d) }),
          svg("text", { x: left - 8, y: y(d) + 4, class: `name d${d}` },
            room < 520 ? d : `device ${d}`),
        );
      }
      const axis = svg("text", { x: left, y: height - 5, class: "axis" }, "time →");
      const ghosts = svg("g", { class: "ghosts" });
      const done = svg("g", { "clip-path": `url(#${id})` });
      const tall = row * 0.56;
      for (const b of run.blocks) {
        const w = Math.max(1, x(b.end) - x(b.start) - (room > 500 ? 1 : 0.5));
        const box = {
          x: x(b.start).toFixed(2), y: (y(b.device) - tall / 2).toFixed(2),
          width: w.toFixed(2), height: tall.toFixed(2), rx: Math.min(2, w / 4).toFixed(2),
        };
        ghosts.append(svg("rect", box));
        done.append(svg("rect", { ...box, class: `block ${b.kind} d${b.device}` }));
        const label = b.kind === "U" ? "U" : String(b.n);
        if (w > 5 + 6 * label.length) {
          const at = { x: (x(b.start) + w / 2).toFixed(1), y: y(b.device) + 4 };
          done.append(svg("text", { ...at, class: `inside ${b.kind} d${b.device}` }, label));
        }
      }
      const lines = Array.from({ length: run.devices }, () => []);
      for (const m of run.messages)
        lines[m.source].push(
          `M${x(m.start).toFixed(1)} ${y(m.source)}L${x(m.end).toFixed(1)} ${y(m.target)}`,
        );
      lines.forEach((path, d) => {
        const opacity = Math.max(0.12, Math.min(0.6, 14 / path.length)); // many hide boxes
        if (path.length)
          done.append(svg("path", { d: path.join(""), class: `sent d${d}`, opacity }));
      });
      const line = svg("line", { class: "head", y1: 0, y2: height - 18 });
      const moving = svg("g");
      drawing.append(clip, rows, axis, ghosts, done, line, moving);
      drawing.onclick = pick;
      picture.replaceChildren(drawing);
      const largest = Math.max(...run.messages.map((m) => m.size));
      parts = { x, y, past, line, moving, left, largest };
    };

    // What is under way at a time; `from` is when the frame began.
    const place = (t, from) => {
      const { x, y, past, line, moving, left, largest } = parts;
      past.setAttribute("width", t ? (x(t) - left + 1).toFixed(2) : 0);
      line.setAttribute("x1", x(t));
      line.setAttribute("x2", x(t));
      moving.replaceChildren();
      for (const m of run.messages) {
        if (m.start > t - SAME || m.end < from + SAME) continue;
        const share = Math.min(1, (t - m.start) / (m.end - m.start));
        const [x0, y0, x1] = [x(m.start), y(m.source), x(Math.min(t, m.end))];
        const y1 = y0 + share * (y(m.target) - y0);
        const r = (3 + 6 * Math.sqrt(m.size / largest)).toFixed(1);
        moving.append(
          svg("line", { x1: x0, y1: y0, x2: x1, y2: y1, class: `way d${m.source}` }),
          svg("circle", { cx: x1, cy: y1, r, class: `dot d${m.source}` }),
        );
      }
    };

    // -- numbers and words ------------------------------------------------------------
    const count = (t) => {
      countersAt(run, t).forEach((c, d) => {
        for (const key in head.top) {
          const field = counters.rows[d].querySelector(`.${key}`);
          field.textContent = key === "idle" ? percent(c.idle) : bytes(c[key]);
          field.style.setProperty("--share", (c[key] / head.top[key] || 0).toFixed(3));
        }
      });
    };

    const say = (at) => {
      const words = at
        ? sentence(run, run.frames[at - 1], run.frames[at])
        : "Before the step: faint boxes show what will be computed.";
      const lead = touched ? "" : "Press Play to watch the step from its beginning. ";
      now.textContent = `${lead}Moment ${at} of ${run.frames.length - 1}. ${words}`;
      slider.setAttribute("aria-valuetext", now.textContent);
    };

    const settle = () => {
      const [last, t] = [run.frames.length - 1, run.frames[frame]];
      place(t, frame ? run.frames[frame - 1] : 0);
      count(t);
      slider.value = frame;
      say(frame);
      const sent = run.messages.filter((m) => m.end <= t + SAME);
      const moved = `${several(sent.length, "message")} moved ` +
        bytes(sent.reduce((sum, m) => sum + m.size, 0));
      const soFar = sent.length ? `So far, ${moved}.` : "Nothing has been sent yet.";
      const idle = run.idle.reduce((a, b) => a + b) / run.devices;
      result.textContent = frame < last ? soFar :
        "After the step, all weights on all devices are those of one device; the largest " +
        `difference is ${run.difference.toExponential(0)}. ${moved}; devices were ` +
        `idle for ${percent(idle)} of the time.`;
      link.textContent = "Copy a link to this moment";
    };

    const list = () => {
      if (!details.open) return;
      table.replaceChildren(
        ...run.messages.map((m) => {
          const row = cell("tr");
          const title = cell("th");
          title.scope = "row";
          const button = cell("button", "pick", String(m.number));
          button.type = "button";
          button.onclick = () => show(m);
          title.append(button);
          const words = [m.source, m.target, m.size.toLocaleString("en"), purpose(m), m.line];
          row.append(title, ...words.map((text) => cell("td", "", String(text))));
          return row;
        }),
      );
    };

    // -- one message --------------------------------------------------------------------
    // Go to where a message is under way, and say which line of the library sent it.
    const show = (m) => {
      go(run.frames.findIndex((t) => t > m.start + SAME));
      now.textContent =
        `Message ${m.number}: device ${m.source} sends ${m.size.toLocaleString("en")} ` +
        `bytes to device ${m.target} (${purpose(m)}). Sent by `;
      now.append(cell("code", "", m.line));
      const { title, chapter } = head.strategies[strategy.value];
      if (!chapter) return;
      const more = cell("a", "", title);
      more.href = chapter;
      now.append(". Chapter: ", more);
    };

    const pick = (event) => {
      const box = picture.getBoundingClientRect();
      const [px, py] = [event.clientX - box.left, event.clientY - box.top];
      const distance = (m) => {
        const [x0, x1] = [parts.x(m.start), parts.x(m.end)];
        const [y0, y1] = [parts.y(m.source), parts.y(m.target)];
        const length = (x1 - x0) ** 2 + (y1 - y0) ** 2;
        const along = ((px - x0) * (x1 - x0) + (py - y0) * (y1 - y0)) / length;
        const share = Math.max(0, Math.min(1, along));
        return Math.hypot(px - x0 - share * (x1 - x0), py - y0 - share * (y1 - y0));
      };
      const [near, m] = run.messages.reduce(
        (best, one) => (distance(one) < best[0] ? [distance(one), one] : best),
        [12, null],
      );
      if (m && near < 12) show(m);
    };

    // -- playing ------------------------------------------------------------------------
    const stop = () => {
      if (timer !== null) cancelAnimationFrame(timer), clearTimeout(timer);
      timer = null;
      play.textContent = "Play";
      now.setAttribute("aria-live", "polite"); // playing, it would talk without end
    };

    const go = (to, byReader = true) => {
      stop();
      touched ||= byReader;
      frame = Math.max(0, Math.min(run.frames.length - 1, to));
      settle();
    };

    // From one frame to the next in equal times, so that a message of 0.1 is seen, too.
    const advance = () => {
      const [from, to] = [run.frames[frame], run.frames[frame + 1]];
      const pause = Math.max(110, Math.min(700, 24000 / run.frames.length));
      const arrive = () => {
        frame += 1;
        settle();
        if (frame < run.frames.length - 1) advance();
        else stop();
      };
      if (calm.matches) {
        timer = setTimeout(arrive, Math.max(600, pause));
        return;
      }
      say(frame + 1);
      let began = null;
      const tick = (time) => {
        began = began === null ? time : began;
        const share = Math.min(1, (time - began) / pause);
        if (share === 1) return arrive();
        place(from + share * (to - from), from);
        timer = requestAnimationFrame(tick);
      };
      timer = requestAnimationFrame(tick);
    };

    const toggle = () => {
      if (timer !== null) return go(frame);
      if (!touched || frame === run.frames.length - 1) frame = 0;
      touched = true;
      settle();
      play.textContent = "Pause";
      now.setAttribute("aria-live", "off");
      advance();
    };

    // -- choosing -----------------------------------------------------------------------
    const choose = async (to = 0, byReader = true) => {
      if (run) stop();
      const name = `${strategy.value} ${devices.value}`;
      let chosen;
      try {
        chosen = await load(head.runs, name);
      } catch (error) {
        now.textContent = `This run did not load (${error.message}). Reload the page.`;
        return;
      }
      if (name !== `${strategy.value} ${devices.value}`) return; // chosen anew meanwhile
      run = chosen;
      slider.max = run.frames.length - 1;
      counters.replaceChildren(
        ...run.memory.map((_, d) => {
          const row = cell("tr");
          const title = cell("th", `d${d}`, String(d));
          title.scope = "row";
          row.append(title, ...Object.keys(head.top).map((key) => cell("td", key)));
          return row;
        }),
      );
      const kinds = new Set(run.blocks.map((b) => b.kind));
      for (const item of figure.querySelectorAll("[data-kind]"))
        item.hidden = !kinds.has(item.dataset.kind);
      find("each").textContent = run.each;
      const { chapter } = head.strategies[strategy.value];
      find("chapter").href = chapter;
      find("chapter").hidden = !chapter;
      find("chapter").textContent = "Read the chapter";
      draw();
      go(to, byReader);
      list();
      figure.dataset.ready = name;
    };

    // Offer the numbers of devices that a strategy has; `wanted`, or the next larger one.
    const offer = (key, wanted) => {
      const numbers = head.strategies[key].devices;
      strategy.value = key;
      devices.replaceChildren(...numbers.map((k) => new Option(`${k} devices`, k)));
      devices.value = numbers.find((k) => k >= Number(wanted));
    };

    // The address of a moment is that of an element, `#step-ring-4-19`: the theme looks
    // for the element, and finds none.
    const copyLink = () => {
      history.replaceState(null, "", `#step-${strategy.value}-${run.devices}-${frame}`);
      navigator.clipboard?.writeText(location.href).catch(() => {});
      link.textContent = "The address of this page now leads here";
    };

    const fromAddress = () => {
      const asked = location.hash.match(/^#step-(\w+)-(\d+)-(\d+)$/);
      if (!asked || !head.strategies[asked[1]]) return false;
      if (!head.strategies[asked[1]].devices.includes(Number(asked[2]))) return false;
      offer(asked[1], asked[2]);
      choose(Number(asked[3]));
      figure.scrollIntoView({ block: "center" });
      return true;
    };

    for (const key in head.strategies) strategy.add(new Option(head.strategies[key].title, key));
    offer(...head.first.split(" "));
    strategy.onchange = () => {
      offer(strategy.value, devices.value);
      choose();
    };
    devices.onchange = () => choose();
    play.onclick = toggle;
    find("back").onclick = () => go(frame - 1);
    find("next").onclick = () => go(frame + 1);
    slider.oninput = () => go(Number(slider.value));
    details.ontoggle = list;
    link.onclick = copyLink;
    addEventListener("hashchange", fromAddress);
    figure.addEventListener("keydown", (event) => {
      const tag = event.target.tagName;
      const free = !event.ctrlKey && !event.metaKey && !event.altKey && tag !== "SELECT";
      const moves = {
        ArrowLeft: () => go(frame - 1), ArrowRight: () => go(frame + 1),
        Home: () => go(0), End: () => go(run.frames.length - 1), " ": toggle,
      };
      const own = event.key === " " && ["BUTTON", "SUMMARY", "A"].includes(tag);
      if (!free || own || !moves[event.key] || event.target.closest(".messages")) return;
      event.preventDefault();
      moves[event.key]();
    });
    new ResizeObserver(() => {
      if (!run || Math.abs(picture.clientWidth - room) < 1) return;
      draw();
      place(run.frames[frame], frame ? run.frames[frame - 1] : 0);
    }).observe(picture);
    for (const part of ["controls", "more", "counters"]) find(part).hidden = false;
    if (!fromAddress()) choose(head.frame, false);
  };

  const begin = () => document.querySelectorAll(".one-step").forEach(start);
  if (document.readyState === "loading") addEventListener("DOMContentLoaded", begin);
  else begin();
})();
