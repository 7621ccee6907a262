// Times to first tokens, and who waits before there are any.

import { bar, histogram } from "./charts.js";
import { Table, empty } from "./dom.js";
import { count, quantile, seconds } from "./figures.js";

export class Ttft {
  constructor(host) {
    this.host = host;
    this.table = new Table(host, "Time to first token by group and class", [
      { head: "Group", fill: (_, row) => row.group },
      { head: "Class", fill: (_, row) => row.priority },
      { head: "Streams", kind: "number", fill: (_, row) => count(row.all) },
      { head: "P50", kind: "number", fill: (_, row) => seconds(quantile(row.bounds, row.counts, 0.5)) },
      { head: "P95", kind: "number", fill: (_, row) => seconds(quantile(row.bounds, row.counts, 0.95)) },
      { head: "Spread", kind: "drawn", fill: (cell, row) => histogram(cell, row.counts) },
    ]);
  }

  show({ over }) {
    const rows = over.ttft.series
      .map((each) => ({ ...each, bounds: over.ttft.bounds, all: each.counts.reduce((sum, n) => sum + n, 0) }))
      .filter((row) => row.all > 0);
    this.table.show(rows, (row) => `${row.group} ${row.priority}`);
    empty(this.host, rows.length > 0 ? null : "No stream has begun in this time.");
  }
}

export class Queue {
  constructor(host) {
    this.most = 1;
    this.table = new Table(host, "Requests that wait, by class", [
      { head: "Class", fill: (_, row) => row.priority },
      { head: "Waiting", fill: (cell, row) => bar(cell, row.waiting / this.most, count(row.waiting), "cool") },
      { head: "Queue full", kind: "number", fill: (_, row) => count(row.full) },
      { head: "Too late", kind: "number", fill: (_, row) => count(row.late) },
    ]);
  }

  show({ frame: { queue } }) {
    const rows = Object.entries(queue.waiting).map(([priority, waiting]) => ({
      priority,
      waiting,
      full: queue.shed[priority]?.full ?? 0,
      late: queue.shed[priority]?.late ?? 0,
    }));
    this.most = Math.max(1, ...rows.map((row) => row.waiting));
    this.table.show(rows, (row) => row.priority);
  }
}
