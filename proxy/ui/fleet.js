// The replicas: how they are, what they have to do, what their caches hold, and how well that is known.

import { bar } from "./charts.js";
import { Table, empty, make, once, say } from "./dom.js";
import { NONE, count, percent, short } from "./figures.js";

const MODES = {
  events: "the engine tells what it stores and evicts",
  stale: "its events are not whole at the moment, and believed in part",
  learned: "the engine tells nothing; predicted from what was sent there",
  slots: "one prompt a slot; predicted from what was sent there",
  bytes: "prompts are not tokenised; predicted by blocks of text",
};

function health(row) {
  if (row.state === "down") return ["bad", "down"];
  if (row.state !== "up") return ["fair", row.state];
  if (row.breaker !== "closed") return ["fair", `breaker ${row.breaker.replace("_", "-")}`];
  if (row.suspect) return ["fair", "suspect"];
  return ["good", "up"];
}

function named(cell, row) {
  const parts = once(cell, () => ({ name: make("span", { class: "name" }), more: make("span", { class: "more" }) }));
  say(parts.name, row.name);
  say(parts.more, row.models === undefined ? "" : [row.engine, ...row.models].join(" · "));
}

function state(cell, row) {
  const parts = once(cell, () => ({ text: make("span", { class: "state" }) }));
  const [tone, words] = health(row);
  parts.text.dataset.tone = tone;
  say(parts.text, words);
}

function mode(cell, row) {
  const parts = once(cell, () => ({ text: make("span", { class: "mode" }) }));
  parts.text.dataset.mode = row.index_mode ?? "";
  say(parts.text, row.index_mode ?? NONE);
}

export class Fleet {
  constructor(host) {
    this.host = host;
    this.lead = host.parentElement.querySelector(".lead");
    this.table = new Table(host, "Replicas", [
      { head: "Replica", fill: named },
      { head: "State", fill: state },
      { head: "In flight", fill: (cell, row) => this.load(cell, row) },
      { head: "Queued tokens", kind: "number", fill: (_, row) => short(row.queued_tokens) },
      { head: "Cache", fill: (cell, row) => this.cache(cell, row) },
      { head: "KV usage", kind: "number", fill: (_, row) => (row.kv_usage == null ? NONE : percent(row.kv_usage, 1)) },
      { head: "Index", fill: mode },
      { head: "Prefill /s", kind: "number", fill: (_, row) => short(row.prefill_tokens_per_second) },
      { head: "Requests", fill: (cell, row) => this.share(cell, row) },
    ]);
  }

  load(cell, row) {
    const limit = row.limit ?? null;
    const share = limit === null ? row.in_flight / this.busiest : row.in_flight / Math.max(limit, 1);
    bar(cell, share, limit === null ? count(row.in_flight) : `${count(row.in_flight)} of ${count(limit)}`, "cool");
  }

  cache(cell, row) {
    const room = row.cache_blocks ?? row.index_capacity ?? null;
    if (row.index_blocks === undefined) bar(cell, null, NONE);
    else bar(cell, room > 0 ? row.index_blocks / room : null, `${short(row.index_blocks)} blocks`);
  }

  share(cell, row) {
    bar(cell, this.routed > 0 ? row.requests / this.routed : null, count(row.requests), "plain");
  }

  show({ frame, over }) {
    const routed = new Map();
    for (const { replica, count: n } of over.decisions) routed.set(replica, (routed.get(replica) ?? 0) + n);
    this.busiest = Math.max(1, ...frame.replicas.map((row) => row.in_flight));
    this.routed = Math.max(0, ...routed.values());
    const rows = frame.replicas.map((row) => ({ ...row, requests: routed.get(row.name) ?? 0 }));
    this.table.show(rows, (row) => `${row.name} ${row.state === "leaving"}`);
    const modes = Object.keys(MODES).filter((name) => rows.some((row) => row.index_mode === name));
    say(this.lead, modes.map((name) => `Index ${name}: ${MODES[name]}.`).join(" "));
    empty(this.host, rows.length > 0 ? null : "The fleet is empty: POST /admin/replicas takes one in.");
  }
}
