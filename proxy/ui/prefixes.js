// The prefixes that most prompts begin with: what they save, and who holds them.

import { Table, empty, make, once, say } from "./dom.js";
import { count, short } from "./figures.js";

const SHOWN = 8;

function holders(cell, row) {
  const parts = once(cell, () => ({ names: make("span", { class: "name" }), more: make("span", { class: "more" }) }));
  say(parts.names, row.holders.map((each) => each.replica).join(", ") || "nobody");
  const words = [];
  if (row.state !== "steady") words.push(`${row.state} to ${row.replicas_wanted}`);
  if (row.released.length > 0) words.push(`no longer needed on ${row.released.join(", ")}`);
  say(parts.more, words.join("; "));
}

export class Prefixes {
  constructor(host) {
    this.host = host;
    this.table = new Table(host, "The hottest prefixes", [
      { head: "Prefix", kind: "id", fill: (_, row) => row.id },
      { head: "Tokens", kind: "number", fill: (_, row) => count(row.tokens) },
      { head: "Prompts /min", kind: "number", fill: (_, row) => short(row.requests_per_minute) },
      { head: "Saved /min", kind: "number", fill: (_, row) => short(row.tokens_saved_per_minute) },
      { head: "Held by", fill: holders },
    ]);
  }

  show(told) {
    const rows = (told?.prefixes ?? []).slice(0, SHOWN);
    this.table.show(rows, (row) => row.id);
    empty(this.host, rows.length > 0 ? null : "No prefix is shared by enough prompts to stand out.");
  }
}
