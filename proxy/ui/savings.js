// What the caches save in GPU time, beyond what round robin would have found in them.

import { Table, empty, make, once, say } from "./dom.js";
import { NONE, count, percent, seconds } from "./figures.js";

/** GPU-seconds as hours once there are some: the divisor, and the unit. */
const scale = (value) => (Math.abs(value) >= 3600 ? [3600, "GPU-hours"] : [1, "GPU-seconds"]);
const figure = (value) => (Math.abs(value) >= 100 ? count(value) : value.toFixed(1));

const money = (amount, currency) => `${amount.toFixed(amount >= 100 ? 0 : 2)} ${currency}`;
const share = (value) => (value === null || value === undefined ? NONE : percent(value, 1));

export class Savings {
  constructor(host) {
    this.host = host;
  }

  show(told) {
    empty(this.host, told === null ? "Savings are not told here." : null);
    if (told === null) return;
    const { value, more, why } = once(this.host, () => ({
      value: make("p", { class: "value" }),
      more: make("p", { class: "quiet" }),
      why: make("p", { class: "quiet" }),
    }));
    const { saved_gpu_seconds: saved, interval_95: interval, saved: worth } = told;
    if (saved === null) {
      say(value, NONE);
      say(more, `Waiting for ${told.waiting_for}.`);
    } else {
      const [size, unit] = scale(saved);
      const [low, high] = interval.map((each) => figure(each / size));
      const price = worth ? `, ${money(worth.amount, worth.currency)}` : "";
      say(value, `${figure(saved / size)} ${unit}${price}`);
      say(more, `saved against round robin; 95 % interval: ${low} to ${high}`);
    }
    const cost = told.seconds_per_token === null ? "" : `; a token takes ${seconds(told.seconds_per_token)} to prefill`;
    say(why, `Hit rate ${share(told.hit_rate)}, under round robin ${share(told.round_robin_hit_rate)}${cost}.`);
  }
}

/** Policies that are asked about every request, and never obeyed. */
export class Shadows {
  constructor(host) {
    this.host = host;
    this.section = host.closest("section");
    this.table = new Table(host, "What other policies would have found", [
      { head: "Policy", fill: (_, row) => row.policy },
      { head: "Requests", kind: "number", fill: (_, row) => count(row.requests) },
      { head: "Best replica held", kind: "number", fill: (_, row) => share(row.available_rate) },
      { head: "Hit rate", kind: "number", fill: (_, row) => share(row.hit_rate) },
      { head: "First token, modelled", kind: "number", fill: (_, row) => seconds(row.modelled_ttft_seconds) },
    ]);
  }

  show(told) {
    const rows = told?.shadows ?? [];
    this.section.hidden = rows.length === 0;
    this.table.show(rows, (row) => row.policy);
  }
}
