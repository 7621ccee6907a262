// From the prompt tokens that there were to those that came from a cache, by traffic group.

import { bar } from "./charts.js";
import { Table, empty, make } from "./dom.js";
import { NONE, count, grouped, percent } from "./figures.js";

const FIGURES = ["prompt", "available", "routed", "reported", "reported_prompt"];

/** The stages of one group, each with its share and what was lost on the way to it. */
function stages(row) {
  const share = (part, of) => (of > 0 ? part / of : null);
  const steps = [
    { stage: "ceiling", what: "every prompt token", tokens: row.prompt, of: row.prompt, why: "" },
    { stage: "available", tokens: row.available, of: row.prompt, why: "held by nobody" },
    { stage: "routed", tokens: row.routed, of: row.prompt, why: "passed over for load" },
    { stage: "reported", tokens: row.reported, of: row.reported_prompt, why: "not as predicted" },
  ];
  return steps.map((step, at) => {
    const mine = share(step.tokens, step.of);
    const before = at === 0 ? null : share(steps[at - 1].tokens, steps[at - 1].of);
    return { ...step, share: mine, lost: mine === null || before === null ? null : before - mine };
  });
}

const columns = [
  { head: "Stage", fill: (_, row) => row.stage },
  { head: "Share", fill: (cell, row) => bar(cell, row.share, percent(row.tokens, row.of), row.stage) },
  { head: "Tokens", kind: "number", fill: (_, row) => (row.of > 0 ? count(row.tokens) : NONE) },
  {
    head: "Lost",
    kind: "lost",
    fill: (_, row) => (row.lost === null || row.lost < 0.0005 ? "" : `−${(100 * row.lost).toFixed(1)} ${row.why}`),
  },
];

export class Waterfall {
  constructor(host) {
    this.host = host;
    this.groups = new Map();
  }

  show({ over }) {
    const groups = grouped(over.tokens, ["group"], FIGURES).filter((row) => row.prompt > 0);
    empty(this.host, groups.length > 0 ? null : "No prompt was routed in this time.");
    const names = groups.map((row) => row.group);
    for (const [name, { element }] of this.groups) {
      if (!names.includes(name)) {
        element.remove();
        this.groups.delete(name);
      }
    }
    for (const row of groups) {
      let group = this.groups.get(row.group);
      if (group === undefined) {
        const element = make("div", { class: "group" }, make("h3", {}, row.group));
        group = { element, table: new Table(element, `Prompt tokens of ${row.group}`, columns) };
        this.groups.set(row.group, group);
        this.host.append(element);
      }
      group.table.show(stages(row), (each) => each.stage);
    }
  }
}
