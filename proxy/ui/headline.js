// The few figures that say how it goes.

import { sparkline } from "./charts.js";
import { make, say } from "./dom.js";
import { count, percent, quantile, rate, seconds, total } from "./figures.js";

const STEPS = 90;
const RATE_SECONDS = 10;

function tile(name) {
  const parts = {
    value: make("dd", { class: "value" }),
    more: make("dd", { class: "more" }),
    line: make("dd", { class: "drawn" }),
  };
  const element = make("div", { class: "tile" }, make("dt", {}, name), ...Object.values(parts));
  return { element, ...parts };
}

/** Requests a second between two sets of counters. */
function pace(before, now) {
  const span = now.at - before.at;
  return span > 0 ? (total(now.requests, "count") - total(before.requests, "count")) / span : null;
}

function hitShare(before, now) {
  const prompt = total(now.tokens, "prompt") - total(before.tokens, "prompt");
  return prompt > 0 ? (total(now.tokens, "routed") - total(before.tokens, "routed")) / prompt : null;
}

export class Headline {
  constructor(host) {
    this.hits = tile("Cache hit rate");
    this.ttft = tile("Time to first token");
    this.pace = tile("Requests a second");
    this.flight = tile("In flight");
    this.flights = [];
    const tiles = [this.hits, this.ttft, this.pace, this.flight];
    host.append(make("dl", {}, ...tiles.map((each) => each.element)));
  }

  show({ frame, history, over }) {
    const { tokens, requests, ttft } = over;
    const told = total(tokens, "reported_prompt");
    const routed = percent(total(tokens, "routed"), total(tokens, "prompt"));
    say(this.hits.value, told > 0 ? percent(total(tokens, "reported"), told) : routed);
    say(this.hits.more, told > 0 ? `reported; predicted ${routed}` : "predicted");
    sparkline(this.hits.line, history.steps(STEPS, hitShare), 1);

    const counts = ttft.series.reduce((sum, each) => sum.map((n, at) => n + each.counts[at]), ttft.bounds.map(() => 0).concat(0));
    say(this.ttft.value, seconds(quantile(ttft.bounds, counts, 0.5)));
    say(this.ttft.more, `P50; P95 ${seconds(quantile(ttft.bounds, counts, 0.95))}`);
    sparkline(this.ttft.line, history.steps(STEPS, median));

    const recent = history.frames.at(-1 - RATE_SECONDS) ?? history.frames[0];
    const failed = total(requests.filter((row) => row.code.startsWith("5")), "count");
    const all = total(requests, "count");
    say(this.pace.value, over.span > 0 ? rate(all / over.span) : rate(pace(recent, history.frames.at(-1))));
    say(this.pace.more, `${count(all)} answered, ${failed > 0 ? percent(failed, all) : "none"} failed`);
    sparkline(this.pace.line, history.steps(STEPS, pace));

    const flying = total(frame.replicas, "in_flight");
    const waiting = Object.values(frame.queue.waiting).reduce((sum, each) => sum + each, 0);
    this.flights.push(flying);
    if (this.flights.length > STEPS) this.flights.shift();
    say(this.flight.value, count(flying));
    say(this.flight.more, waiting > 0 ? `${count(waiting)} wait for room` : "nobody waits");
    sparkline(this.flight.line, this.flights);
  }
}

function median(before, now) {
  const counts = now.ttft.bounds.map(() => 0).concat(0);
  for (const each of now.ttft.series) each.counts.forEach((n, at) => (counts[at] += n));
  for (const each of before.ttft.series) each.counts.forEach((n, at) => (counts[at] -= n));
  const value = quantile(now.ttft.bounds, counts, 0.5);
  return value === Infinity ? null : value;
}

