// The latest requests: where each went, and, asked for, why.

import { get } from "./api.js";
import { bar } from "./charts.js";
import { Table, empty, make, once, say } from "./dom.js";
import { NONE, count, percent, seconds } from "./figures.js";

const ms = (value) => (value === null || value === undefined ? NONE : seconds(value / 1000));
const clock = (unix) => new Date(unix * 1000).toLocaleTimeString("en", { hour12: false });

function decision(cell, row) {
  const parts = once(cell, () => ({ text: make("span", { class: "tag" }) }));
  const failed = row.outcome !== "ok" && row.outcome !== "client_closed";
  parts.text.dataset.kind = failed ? "failed" : row.decision;
  say(parts.text, failed ? `${row.status} ${row.outcome}` : row.decision || row.outcome);
}

function cached({ tokens }) {
  if (tokens.reported_cached === null) return NONE;
  return percent(tokens.reported_cached, tokens.reported_prompt ?? tokens.prompt);
}

export class Decisions {
  constructor(host, dialog) {
    this.host = host;
    this.why = new Why(dialog);
    this.table = new Table(host, "The latest requests", [
      { head: "Request", fill: (cell, row) => this.named(cell, row) },
      { head: "Ended", fill: (_, row) => clock(row.ended) },
      { head: "Group", fill: (_, row) => `${row.group}, ${row.priority}` },
      { head: "Replica", fill: (_, row) => row.replica || NONE },
      { head: "Decision", fill: decision },
      {
        head: "Predicted",
        fill: (cell, { tokens: { prompt, predicted_cached: held } }) =>
          bar(cell, prompt > 0 ? held / prompt : null, percent(held, prompt)),
      },
      { head: "Reported", kind: "number", fill: (_, row) => cached(row) },
      { head: "First token", kind: "number", fill: (_, row) => ms(row.ms.ttft) },
    ]);
  }

  named(cell, row) {
    const { open } = once(cell, () => {
      const button = make("button", { type: "button", class: "id" });
      button.addEventListener("click", () => this.why.open(button.title));
      return { open: button };
    });
    open.title = row.id;
    say(open, row.id);
  }

  show(told) {
    if (this.host.matches(":hover, :focus-within")) return; // nothing moves under a hand
    const rows = told?.requests ?? [];
    this.table.show(rows, (row) => `${row.id} ${row.ended}`);
    empty(this.host, rows.length > 0 ? null : "No request has ended yet.");
  }
}

/** What is known of one request. */
class Why {
  constructor(dialog) {
    this.dialog = dialog;
    this.body = dialog.querySelector(".body");
    dialog.querySelector("button").addEventListener("click", () => dialog.close());
    dialog.addEventListener("click", (event) => {
      if (event.target === dialog) dialog.close(); // beside it
    });
  }

  async open(id) {
    this.body.replaceChildren(make("p", { class: "quiet" }, "Asking…"));
    this.dialog.showModal();
    try {
      const told = await get(`requests/${encodeURIComponent(id)}`);
      this.body.replaceChildren();
      if (told === null) empty(this.body, "This request is not among the latest any more.");
      else this.tell(told);
    } catch (error) {
      this.body.replaceChildren(make("p", { role: "alert" }, error.message));
    }
  }

  tell(told) {
    const { tokens } = told;
    const facts = [
      ["Request", told.id],
      ["Model", told.model],
      ["Policy", told.arm === "main" ? told.policy : `${told.policy} (${told.arm})`],
      ["Decision", told.decision || told.outcome],
      ["Class", told.priority],
      ["Waited", ms(told.ms.queue)],
      ["Prompt", `${count(tokens.prompt)} tokens`],
      ["Predicted", `${count(tokens.predicted_cached)} cached`],
      ["Reported", tokens.reported_cached === null ? "nothing" : `${count(tokens.reported_cached)} cached`],
      ["First token", ms(told.ms.ttft)],
      ["Whole answer", ms(told.ms.e2e)],
      ["Attempts", count(told.attempts)],
    ];
    this.body.append(
      make("p", { class: "because" }, told.why),
      make("dl", { class: "facts" }, ...facts.map(([name, text]) => make("div", {}, make("dt", {}, name), make("dd", {}, text)))),
    );
    if (told.replicas) this.compare(told);
  }

  compare({ replicas, replica: chosen, runner_up: second, warmest, unit }) {
    const terms = [...new Set(replicas.flatMap((row) => Object.keys(row.terms ?? {})))];
    const figure = (value) => (value === undefined ? NONE : value.toFixed(unit === "milliseconds" ? 1 : 3));
    const marks = (row) => {
      const found = [];
      if (row.replica === chosen) found.push("chosen");
      if (row.replica === second?.replica) found.push("runner-up");
      if (row.replica === warmest?.replica) found.push("warmest");
      return found.join(", ");
    };
    const columns = [
      {
        head: "Replica",
        fill: (cell, row) => cell.append(row.replica, make("span", { class: "more" }, marks(row))),
      },
      { head: "Holds", kind: "number", fill: (_, row) => count(row.matched_tokens) },
      { head: "To compute", kind: "number", fill: (_, row) => count(row.uncached_tokens) },
      ...terms.map((name) => ({
        head: name.replaceAll("_", " "),
        kind: "number",
        fill: (_, row) => figure(row.terms?.[name]),
      })),
    ];
    if (replicas.some((row) => row.score !== undefined)) {
      const head = unit === "milliseconds" ? "Cost, ms" : "Score";
      columns.push({ head, kind: "number total", fill: (_, row) => figure(row.score) });
    }
    new Table(this.body, "What each replica would have cost", columns).show(replicas, (row) => row.replica);
  }
}
