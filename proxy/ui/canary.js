// The canary: how much of the traffic it has, how it compares, what it waits for; and the few things to do by hand.

import { post } from "./api.js";
import { bar } from "./charts.js";
import { Table, empty, make, say } from "./dom.js";
import { NONE, count, percent, seconds } from "./figures.js";

const PHASES = {
  baseline: "Watching both sides before it begins",
  running: "Running",
  paused: "Paused",
  complete: "Complete: all traffic",
  rolled_back: "Rolled back",
};
const ACTIONS = {
  promote: { words: "Promote", when: ["baseline", "running", "paused"] },
  pause: { words: "Pause", when: ["baseline", "running"] },
  resume: { words: "Resume", when: ["paused", "rolled_back"] },
  rollback: { words: "Roll back", when: ["baseline", "running", "paused", "complete"] },
};

const share = (value) => (value === null || value === undefined ? NONE : percent(value, 1));

export class Canary {
  constructor(host) {
    this.host = host;
    this.what = make("p", { class: "because" });
    this.phase = make("p", { role: "status" });
    this.stage = make("div", { class: "stage" });
    this.why = make("p", { class: "quiet" });
    this.refused = make("p", { role: "alert", class: "refused" });
    this.buttons = Object.entries(ACTIONS).map(([name, { words }]) => {
      const button = make("button", { type: "button", "data-action": name }, words);
      button.addEventListener("click", () => this.act(name));
      return button;
    });
    this.parts = make("div", { hidden: true }, this.what, this.phase, this.stage, this.why);
    this.table = new Table(this.parts, "The canary's side and the other", [
      { head: "Side", fill: (_, row) => row.side },
      { head: "Requests", kind: "number", fill: (_, row) => count(row.requests) },
      { head: "TTFT P95", kind: "number", fill: (_, row) => seconds(row.ttft_p95_seconds) },
      { head: "Errors", kind: "number", fill: (_, row) => share(row.errors) },
      { head: "Hit rate", kind: "number", fill: (_, row) => share(row.hit_rate) },
      { head: "KV usage", kind: "number", fill: (_, row) => share(row.kv_usage) },
    ]);
    this.parts.append(make("div", { class: "acts" }, ...this.buttons), this.refused);
    host.append(this.parts);
  }

  show(told) {
    const canary = told?.canary ?? null;
    this.parts.hidden = canary === null;
    empty(this.host, canary === null ? "No canary. WARMROUTE_CANARY__POLICY tries another policy on a part of the traffic." : null);
    if (canary === null) return;
    const on = canary.replicas.length > 0 ? ` on ${canary.replicas.join(", ")}` : "";
    say(this.what, `${canary.policy}${on} against ${canary.against}`);
    say(this.phase, PHASES[canary.phase] ?? canary.phase);
    bar(this.stage, canary.percent / 100, `${canary.percent} % of the traffic; stages ${canary.stages.join(", ")}`);
    const waits = canary.waiting_for === null ? "" : ` Next: ${canary.waiting_for}.`;
    say(this.why, canary.why === "" ? waits.trim() : `${canary.why}.${waits}`);
    const rows = Object.entries(canary.arms).map(([side, figures]) => ({ side, ...figures }));
    this.table.show(rows, (row) => row.side);
    for (const button of this.buttons) button.hidden = !ACTIONS[button.dataset.action].when.includes(canary.phase);
  }

  async act(name) {
    say(this.refused, "");
    try {
      this.show(await post("canary", { action: name }));
    } catch (error) {
      say(this.refused, error.message);
    }
  }
}
