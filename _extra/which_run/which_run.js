// Which run is broken? Shows the runs that tools/record_bugs.py has recorded, two at a
// time; computed here is only the order of the rounds and the score.
(() => {
  "use strict";
  const [WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM] = [340, 210, 44, 8, 10, 34];
  const [LOWEST, HIGHEST] = [-175, 25]; // of differences: ten times their logarithm
  const FINAL = 5; // points of a curve: the last 20 steps
  const NS = "http://www.w3.org/2000/svg";

  const svg = (name, attributes = {}, text) => {
    const element = document.createElementNS(NS, name);
    for (const key in attributes) element.setAttribute(key, attributes[key]);
    if (text !== undefined) element.textContent = text;
    return element;
  };
  const cell = (name, text, className) => {
    const element = document.createElement(name);
    if (className) element.className = className;
    if (text !== undefined) element.textContent = text;
    return element;
  };
  const several = (n, word) => `${n} ${word}${n === 1 ? "" : "s"}`;
  const raised = (n) => String(n).replace(/[-\d]/g, (c) => "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"["-0123456789".indexOf(c)]);
  const power = (tenths) => {
    const [digit, exponent] = (10 ** (tenths / 10)).toExponential(0).split("e").map(Number);
    if (Math.abs(exponent) < 3) return String(Number(`${digit}e${exponent}`));
    return `${digit === 1 ? "" : `${digit}·`}10${raised(exponent)}`;
  };
  const last = (points) => points[points.length - 1];
  const final = ({ loss }) => {
    const points = loss.slice(-FINAL);
    return points.reduce((a, b) => a + b) / points.length / 1e4;
  };
  const written = (loss) => (loss >= 99.9 ? "over 99" : Number(loss.toPrecision(3)).toString());

  // Numbers in [0, 1) that a seed decides (mulberry32), and a list shuffled by them.
  const drawn = (seed) => () => {
    seed = (seed + 0x6d2b79f5) | 0;
    let t = Math.imul(seed ^ (seed >>> 15), 1 | seed);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
  };
  const rounds = (bugs, seed) => {
    const draw = drawn(seed);
    const order = bugs.map((bug) => ({ bug, place: draw(), broken: draw() < 0.5 ? "a" : "b" }));
    return order.sort((one, other) => one.place - other.place);
  };

  // Two lines over the steps; `ticks` are pairs of a value and its text.
  const chart = (title, label, lines, ticks, [low, high], { steps, each }) => {
    const drawing = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": label });
    const y = (value) => {
      const share = (Math.min(Math.max(value, low), high) - low) / (high - low);
      return (HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)).toFixed(1);
    };
    const x = (share) => (LEFT + share * (WIDTH - LEFT - RIGHT)).toFixed(1);
    for (const [value, text] of ticks)
      drawing.append(
        svg("line", { x1: LEFT, x2: WIDTH - RIGHT, y1: y(value), y2: y(value) }),
        svg("text", { class: "tick", x: LEFT - 4, y: Number(y(value)) + 4 }, text),
      );
    for (const share of [0, 0.5, 1])
      drawing.append(
        svg("text", { class: `step at${share * 2}`, x: x(share), y: HEIGHT - BOTTOM + 14 }, share * steps),
      );
    drawing.append(svg("text", { class: "title", x: LEFT, y: HEIGHT - 4 }, title));
    for (const name in lines) {
      const points = lines[name].map((value, i) => `${x(((i + 1) * each) / steps)},${y(value)}`);
      if (points.length === 1) points.unshift(`${x(0)},${y(lines[name][0])}`); // to be seen
      drawing.append(svg("polyline", { class: name, points: points.join(" ") }));
    }
    return drawing;
  };

  const start = (figure) => {
    const find = (part) => figure.querySelector(`[data-part="${part}"]`);
    const data = JSON.parse(find("data").textContent);
    const [next, link, answer, choice] = ["next", "link", "answer", "choice"].map(find);
    let seed, order, number, guesses;

    const round = () => order[number];
    const way = () => data.ways[round().bug.way];
    const runs = () => {
      const pair = [way(), round().bug];
      const [a, b] = round().broken === "b" ? pair : pair.reverse();
      return { a, b };
    };

    const losses = () => {
      const { a, b } = runs();
      const top = 1.3 * Math.max(...way().loss);
      const most = Math.min(top, Math.max(...a.loss, ...b.loss));
      const nice = [0.2, 0.5, 1, 2, 3, 4, 5, 10].find((step) => most / 1e4 / step <= 4);
      const ticks = [];
      for (let i = 0; i * nice * 1e4 <= most; i++)
        ticks.push([i * nice * 1e4, String(Number((i * nice).toFixed(1)))]);
      const label = `Loss of two runs: A ends at ${final(a).toFixed(1)}, B at ${final(b).toFixed(1)}`;
      find("loss").replaceChildren(
        chart("loss after so many steps", label, { a: a.loss, b: b.loss }, ticks, [0, most], data),
      );
    };

    const weights = () => {
      const { a, b } = runs();
      const ticks = [-150, -100, -50, 0].map((tenths) => [tenths, power(tenths)]);
      const label =
        "Largest difference of the weights from one device: " +
        `A ${power(last(a.difference))}, B ${power(last(b.difference))} in the end`;
      const lines = { a: a.difference, b: b.difference };
      const span = [LOWEST, HIGHEST];
      const drawing = chart("weights: difference from one device", label, lines, ticks, span, data);
      drawing.classList.add("revealed");
      find("weights").replaceChildren(drawing);
    };

    // Before the guess, whole percent; the last digits, as the weights, come after it.
    const numbers = (guessed) => {
      const at = ({ accuracy }, step) => {
        const found = accuracy[step / 20 - 1]; // one each 20 steps
        return found === undefined ? "none" : (found / 10).toFixed(guessed ? 1 : 0);
      };
      const heads = ["run", "accuracy in %, after 20 steps", `after ${data.steps}`];
      if (guessed) heads.push("final loss", `weights off after ${data.each}`, `after ${data.steps}`);
      find("heads").replaceChildren(
        ...heads.map((text) => {
          const head = cell("th", text);
          head.scope = "col";
          return head;
        }),
      );
      const rows = Object.entries(runs()).map(([name, run]) => {
        const row = cell("tr");
        const head = cell("th", name.toUpperCase(), name);
        head.scope = "row";
        const cells = [at(run, 20), at(run, data.steps)];
        if (guessed)
          cells.push(written(final(run)), power(run.difference[0]), power(last(run.difference)));
        row.append(head, ...cells.map((text) => cell("td", text)));
        return row;
      });
      find("runs").replaceChildren(...rows);
    };

    const score = () => {
      const missed = guesses.filter(({ right }) => !right);
      const done = guesses.length;
      const found = `You found ${done - missed.length} of ${several(done, "bug")} by the loss`;
      if (!done) find("score").textContent = "";
      else if (done < order.length)
        find("score").textContent = `${found}, where a coin finds half. The weights tell all.`;
      else
        find("score").textContent =
          `${found}. A coin finds half, naming the run with the higher final loss ` +
          `${data.higherLoss}, and the weights and the tests all ${done}.` +
          (missed.length ? ` You missed: ${missed.map(({ bug }) => bug.bug).join("; ")}.` : "");
    };

    const show = () => {
      const { words, devices, network } = way();
      find("round").textContent =
        `Round ${number + 1} of ${order.length}: ${words}, ${devices} devices, ${network}. Both runs ` +
        "began with the same seed. One of them has a bug. Which one?";
      losses();
      numbers(false);
      find("weights").replaceChildren(cell("p", "The weights, after your guess", "hidden-chart"));
      answer.replaceChildren();
      choice.hidden = false;
      next.hidden = true;
      link.textContent = "Copy a link to this round";
      figure.dataset.ready = `${seed} ${number}`;
    };

    const guess = (name) => {
      if (choice.hidden) return;
      const { bug, broken } = round();
      const right = name === broken;
      guesses.push({ bug, right });
      choice.hidden = true;
      weights();
      numbers(true);
      const [B, C] = broken === "b" ? ["B", "A"] : ["A", "B"];
      const verdict = cell("p", "", right ? "right" : "wrong");
      verdict.append(
        cell("strong", right ? `Right, ${B} is broken.` : `No: ${B} is broken, ${C} is correct.`),
        ` After ${bug.difference.length * data.each} steps, the weights of ${C} are ` +
          `${power(way().difference[bug.difference.length - 1])} away from those of one ` +
          `device, and those of ${B} ${power(last(bug.difference))}.`,
      );
      if (bug.loss.length < way().loss.length)
        verdict.append(` After ${bug.loss.length * data.each} steps, the loss of ${B} was not finite.`);
      const code = cell("pre", undefined, "diff");
      code.tabIndex = 0;
      code.append(...bug.diff.map((line) => cell("span", `${line}\n`, line[0] === "+" ? "added" : "removed")));
      const where = cell("p", "The bug: ");
      where.append(cell("em", bug.bug), ", planted in ", cell("code", bug.file), ":");
      const caught = cell("p", "The test that caught it: ");
      caught.append(cell("code", bug.test));
      answer.replaceChildren(verdict, where, code, caught);
      score();
      next.hidden = false;
      next.textContent = guesses.length < order.length ? "Next round" : "Play again";
      next.focus({ preventScroll: true });
    };

    const forward = () => {
      if (next.hidden) return;
      if (guesses.length === order.length) begin(1 + Math.floor(9999 * Math.random()), 0);
      else {
        number = (number + 1) % order.length;
        show();
      }
      find("a").focus({ preventScroll: true });
    };

    // A game from a seed, and from a round on: all rounds are played, whatever the first.
    const begin = (from, first) => {
      seed = from;
      order = rounds(data.bugs, seed);
      number = first;
      guesses = [];
      score();
      show();
    };

    // `#which-run-417-3`: game 417 from round 3. The theme looks for such an element.
    const fromAddress = () => {
      const asked = location.hash.match(/^#which-run-(\d{1,6})-(\d{1,3})$/);
      if (!asked || asked[2] < 1 || asked[2] > data.bugs.length) return false;
      begin(Number(asked[1]), Number(asked[2]) - 1);
      figure.scrollIntoView({ block: "center" });
      return true;
    };

    find("a").onclick = () => guess("a");
    find("b").onclick = () => guess("b");
    next.onclick = forward;
    link.onclick = () => {
      history.replaceState(null, "", `#which-run-${seed}-${number + 1}`);
      navigator.clipboard?.writeText(location.href).catch(() => {});
      link.textContent = "The address of this page now leads here";
    };
    addEventListener("hashchange", fromAddress);
    figure.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const act = { a: () => guess("a"), b: () => guess("b"), n: forward }[event.key.toLowerCase()];
      if (!act) return;
      event.preventDefault();
      event.stopPropagation();
      act();
    });
    find("game").hidden = false;
    if (!fromAddress()) begin(1 + Math.floor(9999 * Math.random()), 0);
  };

  for (const figure of document.querySelectorAll(".which-run")) start(figure);
})();
