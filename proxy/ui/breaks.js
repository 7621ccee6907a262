// Where prompts that are alike stop sharing, what that costs, and what would mend it.

import { Table, empty, make, once, say } from "./dom.js";
import { count, short } from "./figures.js";

const SHOWN = 8;

function place(cell, row) {
  const parts = once(cell, () => ({ path: make("code"), more: make("span", { class: "more" }) }));
  say(parts.path, row.path);
  say(parts.more, `${row.kind.replaceAll("_", " ")}, after ${short(row.offset)} characters`);
}

function fix(cell, row) {
  const parts = once(cell, () => ({ words: make("span"), around: make("code", { class: "more" }) }));
  say(parts.words, row.fix);
  say(parts.around, row.window ?? "");
}

export class Breaks {
  constructor(host) {
    this.host = host;
    this.table = new Table(host, "Prefix breaks", [
      { head: "Where", fill: place },
      { head: "Requests /day", kind: "number", fill: (_, row) => short(row.requests_per_day) },
      { head: "Tokens /day", kind: "number", fill: (_, row) => short(row.tokens_per_day) },
      { head: "What mends it", kind: "wide", fill: fix },
    ]);
  }

  show(told) {
    const rows = (told?.breaks ?? []).slice(0, SHOWN);
    this.table.show(rows, (row) => `${row.path} ${row.offset} ${row.kind}`);
    const none =
      told === null
        ? "Breaks are not looked for: WARMROUTE_BREAKS__PER_SECOND is 0."
        : `None found in ${count(told.requests_looked_at)} requests that missed the caches.`;
    empty(this.host, rows.length > 0 ? null : none);
  }
}
