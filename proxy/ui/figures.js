// Numbers: how they read, what lies between two frames, quantiles of a histogram. Pure; knows nothing of the page.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
export const NONE = "–";

/** 1234567 as 1,234,567. */
export const count = (value) => (value === null || value === undefined ? NONE : whole.format(value));

/** 1234567 as 1.23 M. */
export function short(value) {
  if (value === null || value === undefined) return NONE;
  for (const [size, unit] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e4, "k"]]) {
    if (value >= size) {
      const scaled = value / (unit === "k" ? 1e3 : size);
      return `${scaled.toFixed(scaled >= 100 ? 0 : scaled >= 10 ? 1 : 2)} ${unit}`;
    }
  }
  return whole.format(value);
}

/** A part of a whole in per cent; of nothing it is unknown. */
export const percent = (part, of) => (of > 0 ? `${((100 * part) / of).toFixed(1)} %` : NONE);

/** A time in the unit that reads best. */
export function seconds(value) {
  if (value === null || value === undefined) return NONE;
  if (value === Infinity) return "over an hour";
  if (value > 0 && value < 0.001) return `${(value * 1e6).toFixed(0)} µs`;
  if (value < 0.01) return `${(value * 1e3).toFixed(1)} ms`;
  if (value < 1) return `${Math.round(value * 1e3)} ms`;
  return value < 100 ? `${value.toFixed(2)} s` : `${Math.round(value)} s`;
}

/** Requests, tokens and the like a second. */
export const rate = (value) =>
  value === null ? NONE : value >= 100 ? whole.format(value) : value.toFixed(value >= 10 ? 1 : 2);

/**
 * The q-quantile of a histogram as Prometheus' histogram_quantile gives it: linear within the bucket. null of
 * nothing; Infinity where it lies above the last bound.
 */
export function quantile(bounds, counts, q) {
  const rank = q * counts.reduce((sum, each) => sum + each, 0);
  if (rank === 0) return null;
  let below = 0;
  for (let at = 0; at < bounds.length; at++) {
    if (counts[at] > 0 && below + counts[at] >= rank) {
      const floor = at === 0 ? 0 : bounds[at - 1];
      return floor + ((bounds[at] - floor) * (rank - below)) / counts[at];
    }
    below += counts[at];
  }
  return Infinity;
}

/** The sum of one figure over rows. */
export const total = (rows, name) => rows.reduce((sum, row) => sum + row[name], 0);

/** Rows that are alike in some labels, added up; in the order of their first. */
export function grouped(rows, labels, figures) {
  const found = new Map();
  for (const row of rows) {
    const key = JSON.stringify(labels.map((label) => row[label]));
    const known = found.get(key);
    if (known === undefined) found.set(key, { ...row });
    else for (const name of figures) known[name] += row[name];
  }
  return [...found.values()];
}

const COUNTED = {
  tokens: [["arm", "group"], ["prompt", "available", "routed", "reported", "reported_prompt"]],
  requests: [["group", "priority", "code"], ["count"]],
  decisions: [["decision", "replica"], ["count"]],
};

function counters(frame) {
  const { at, tokens, requests, decisions, ttft } = frame;
  return { at, tokens, requests, decisions, ttft };
}

function less(rows, before, labels, figures) {
  const key = (row) => JSON.stringify(labels.map((label) => row[label]));
  const known = new Map(before.map((row) => [key(row), row]));
  return rows.map((row) => {
    const old = known.get(key(row));
    if (old === undefined) return row;
    return { ...row, ...Object.fromEntries(figures.map((name) => [name, row[name] - old[name]])) };
  });
}

/** What was counted between two frames. */
export function between(before, now) {
  const found = { at: now.at, span: now.at - before.at };
  for (const [name, [labels, figures]] of Object.entries(COUNTED)) {
    found[name] = less(now[name], before[name], labels, figures);
  }
  const old = new Map(before.ttft.series.map((each) => [`${each.group} ${each.priority}`, each.counts]));
  const series = now.ttft.series.map((each) => {
    const counts = old.get(`${each.group} ${each.priority}`);
    return counts === undefined ? each : { ...each, counts: each.counts.map((n, at) => n - counts[at]) };
  });
  found.ttft = { bounds: now.ttft.bounds, series };
  return found;
}

/** The counters of the last minutes, one set a second. */
export class History {
  constructor(most = 301) {
    this.most = most;
    this.frames = [];
  }

  add(frame) {
    const last = this.frames.at(-1);
    if (last !== undefined && total(frame.requests, "count") < total(last.requests, "count")) {
      this.frames = []; // another process: its counters began anew
    }
    this.frames.push(counters(frame));
    if (this.frames.length > this.most) this.frames.shift();
  }

  /** What was counted in the last `span` seconds, as far as it was seen; since the start if 0. */
  over(span) {
    const now = this.frames.at(-1);
    if (span === 0) return { ...now, span: null };
    const first = this.frames.find((frame) => now.at - frame.at <= span + 0.5);
    return between(first, now);
  }

  /** One value for each of the last steps between two frames. */
  steps(most, value) {
    const frames = this.frames.slice(-most - 1);
    return frames.slice(1).map((frame, at) => value(frames[at], frame));
  }
}
