// The plans of the library, its clock and its `verify`, for a race of two all-reduces.
// Plans come as data (_ext/race.py); clock and `verify` are those of clock.py and
// verify.py, for vectors whose parts keep their place. A test compares all with Python.
globalThis.raceModel = (() => {
  "use strict";
  const ITEM = 4; // bytes of an element

  const evenEdges = (total, parts) =>
    Array.from({ length: parts + 1 }, (_, i) =>
      i * Math.floor(total / parts) + Math.min(i, total % parts),
    );

  // The rounds of a plan: "+" or "=", source, target, first piece, pieces. The vector is
  // cut into `parts`, and each part into `pieces`.
  const rounds = (plan, length) => {
    plan.table ??= plan.rows.split(" ").map((round) =>
      round.match(/.{5}/g).map((row) => {
        const [source, target, first, count] = [...row.slice(1)].map((c) => parseInt(c, 36));
        return { source, target, first, last: first + count, add: row[0] === "+" };
      }),
    );
    const outer = evenEdges(length, plan.parts);
    const edges = outer.slice(0, -1).flatMap((first, i) =>
      evenEdges(outer[i + 1] - first, plan.pieces).slice(0, -1).map((edge) => first + edge),
    );
    edges.push(length);
    return plan.table.map((round) =>
      round.map(({ source, target, first, last, add }) => ({
        source, target, first: edges[first], last: edges[last], add,
      })),
    );
  };

  // A plan in which message `number` (from 0, in order) is dropped, doubled, or goes to
  // another rank. A round that loses its only message stays.
  const broken = (table, number, fault) => {
    let count = 0;
    return table.map((round) =>
      round.flatMap((t) => {
        if (count++ !== number) return [t];
        if (fault === "drop") return [];
        const wrong = { ...t, wrong: true };
        return fault === "double" ? [wrong, { ...wrong }] : [{ ...wrong, target: Number(fault) }];
      }),
    );
  };

  // -- the clock ----------------------------------------------------------------------
  // Returns the messages with the times when they begin and end, in seconds.
  const play = (table, cluster) => {
    const { inside, between, per_node: each, nics } = cluster;
    const now = Array(64).fill(0);
    const messages = [];
    const node = (rank) => Math.floor(rank / each);
    const card = (rank) => node(rank) * nics + Math.floor(((rank % each) * nics) / each);
    // Messages of one port wait for its last rank; then they follow one another.
    const ports = () => ({ first: new Float64Array(64), load: new Float64Array(64) });
    const enter = ({ first, load }, place, begin, busy) => {
      first[place] = Math.max(first[place], begin);
      load[place] += busy;
    };
    const free = ({ first, load }, place) => first[place] + load[place];
    table.forEach((round, number) => {
      const [out, into, outCard, intoCard] = [ports(), ports(), ports(), ports()];
      const sent = round.map((t) => {
        const near = node(t.source) === node(t.target);
        const { latency, bandwidth } = near ? inside : between;
        const size = (t.last - t.first) * ITEM;
        const [begin, busy] = [Math.max(now[t.source], now[t.target]), size / bandwidth];
        enter(out, t.source, begin, latency + busy);
        enter(into, t.target, begin, latency + busy);
        if (!near) {
          enter(outCard, card(t.source), begin + latency, busy);
          enter(intoCard, card(t.target), begin + latency, busy);
        }
        return { ...t, near, size, round: number, begin };
      });
      for (const m of sent) {
        m.end = Math.max(free(out, m.source), free(into, m.target));
        if (!m.near)
          m.end = Math.max(m.end, free(outCard, card(m.source)), free(intoCard, card(m.target)));
        messages.push(m);
      }
      for (const m of sent)
        for (const rank of [m.source, m.target]) now[rank] = Math.max(now[rank], m.end);
    });
    return { messages, seconds: Math.max(...now) };
  };

  const seconds = (plan, length, cluster) => play(rounds(plan, length), cluster).seconds;

  // -- verify -------------------------------------------------------------------------
  const inWords = (t) => `rank ${t.source} to rank ${t.target}, elements ${t.first} to ${t.last}`;
  const ranksOf = (set) => [...Array(32).keys()].filter((rank) => set & (1 << rank));

  // What is wrong with a table of messages before it runs: two writers of one element.
  const checkTable = (table) => {
    for (const [i, round] of table.entries()) {
      for (const [j, t] of round.entries()) {
        const others = round.slice(0, j).filter(
          (other) => other.target === t.target && other.first < t.last &&
            t.first < other.last && !(t.add && other.add),
        );
        if (others.length)
          return {
            words: `round ${i + 1}, ${inWords(t)}: expected one writer, but rank ` +
              `${others[others.length - 1].source} writes too`,
            rank: t.target, first: t.first, last: t.last,
          };
      }
    }
    return null;
  };

  // Returns what `verify` of the library says, and of which cell; null if all is right.
  const verify = (table, ranks, length) => {
    const illegal = checkTable(table);
    if (illegal) return illegal;
    const cuts = table.flat().flatMap((t) => [t.first, t.last]);
    const edges = [...new Set([...evenEdges(length, ranks), ...cuts])].sort((a, b) => a - b);
    const at = new Map(edges.map((edge, i) => [edge, i]));
    const pieces = edges.length - 1;
    const all = 2 ** ranks - 1;
    const grid = (value) =>
      Array.from({ length: ranks }, (_, rank) => Array(pieces).fill(value(rank)));
    const held = grid((rank) => 1 << rank), written = grid(() => 0);
    const moved = Array.from({ length: pieces }, () => []);
    for (const [i, round] of table.entries()) {
      const sent = round.map((t) => held[t.source].slice(at.get(t.first), at.get(t.last)));
      for (const [j, t] of round.entries()) {
        const from = at.get(t.first);
        const twice = sent[j].map((set, k) => (t.add ? set & held[t.target][from + k] : 0))
          .find(Boolean);
        if (twice)
          return {
            words: `round ${i + 1}, ${inWords(t)}: the contribution of rank ` +
              `${ranksOf(twice)[0]} is added a second time`,
            rank: t.target, first: t.first, last: t.last,
          };
        for (const [k, set] of sent[j].entries()) {
          held[t.target][from + k] = set | (t.add ? held[t.target][from + k] : 0);
          written[t.target][from + k] = i + 1;
          for (const c of ranksOf(set))
            moved[from + k][c] = `in round ${i + 1}, from rank ${t.source} to rank ${t.target}`;
        }
      }
    }
    for (let rank = 0; rank < ranks; rank++)
      for (let piece = 0; piece < pieces; piece++) {
        const set = held[rank][piece];
        if (set === all) continue;
        const [first, last] = [edges[piece], edges[piece + 1]];
        const round = written[rank][piece];
        const missing = ranksOf(all & ~set)[0];
        const way = moved[piece][missing];
        return {
          words: `at the end rank ${rank}, elements ${first} to ${last} (` +
            (round ? `written in round ${round}` : `not written in ${table.length} rounds`) +
            `) holds the contributions of ranks [${ranksOf(set).join(", ")}]; rank ${missing}'s ` +
            (way ? `moved last ${way}, and came no further`
              : `did not move in ${table.length} rounds`),
          rank, first, last,
        };
      }
    return null;
  };

  // -- what is in the cells -----------------------------------------------------------
  // A replay: `at(time)` returns, for each rank and cell, the set of ranks whose
  // contributions are in it and the set of those that are in it twice.
  const replay = (messages, ranks, length) => {
    const cuts = messages.flatMap((m) => [m.first, m.last]);
    const edges = [...new Set([0, length, ...cuts])].sort((a, b) => a - b);
    const at = new Map(edges.map((edge, i) => [edge, i]));
    const start = () => Array.from({ length: ranks }, (_, rank) =>
      Array.from({ length: edges.length - 1 }, () => [1 << rank, 0]));
    const write = (state, { m, sent }) => {
      sent.forEach(([set, twice], k) => {
        const [held, more] = m.add ? state[m.target][at.get(m.first) + k] : [0, 0];
        state[m.target][at.get(m.first) + k] = [held | set, more | twice | (held & set)];
      });
    };
    const state = start();
    const story = [];
    for (let i = 0; i < messages.length; ) {
      const round = messages.filter((m) => m.round === messages[i].round);
      const read = round.map((m) => ({
        m, sent: state[m.source].slice(at.get(m.first), at.get(m.last)),
      })); // all read the state before the round
      for (const one of read) write(state, one), story.push(one);
      i += round.length;
    }
    return {
      edges,
      at: (time) => {
        const cells = start();
        for (const one of story) if (one.m.end <= time) write(cells, one);
        return cells;
      },
    };
  };

  return { rounds, broken, play, seconds, verify, replay, ranksOf };
})();
