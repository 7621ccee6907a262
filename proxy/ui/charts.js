// Small drawings: a line of the last minute, a share of a whole, a histogram. Each is also told as text beside it.

import { draw, make, once } from "./dom.js";

const WIDTH = 120;
const HEIGHT = 28;

/** A line of values; null is a gap. Scaled to `top`, or to its own greatest. */
export function sparkline(host, values, top = null) {
  const parts = once(host, () => {
    const area = draw("path", { class: "area" });
    const line = draw("path", { class: "line" });
    const dot = draw("path", { class: "dot" }); // no length and round ends: round, however it is stretched
    const options = { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": true };
    const drawing = draw("svg", { ...options, class: "spark" }, area, line, dot);
    Object.assign(drawing, { area, line, dot });
    return { drawing };
  });
  const { area, line, dot } = parts.drawing;
  const known = values.filter((value) => value !== null);
  const most = top ?? Math.max(...known, 1e-9);
  const x = (at) => (values.length < 2 ? WIDTH - 3 : 1 + (at * (WIDTH - 4)) / (values.length - 1));
  const y = (value) => HEIGHT - 2 - (Math.min(value, most) / most) * (HEIGHT - 5);
  let path = "";
  let filled = "";
  let from = null;
  values.forEach((value, at) => {
    if (value === null) {
      if (from !== null) filled += `L${x(at - 1)} ${HEIGHT}Z`;
      from = null;
      return;
    }
    const point = `${x(at).toFixed(1)} ${y(value).toFixed(1)}`;
    path += `${from === null ? "M" : "L"}${point}`;
    filled += from === null ? `M${x(at).toFixed(1)} ${HEIGHT}L${point}` : `L${point}`;
    from ??= at;
  });
  if (from !== null) filled += `L${x(values.length - 1)} ${HEIGHT}Z`;
  line.setAttribute("d", path);
  area.setAttribute("d", filled);
  const last = values.at(-1) ?? null;
  dot.setAttribute("visibility", last === null ? "hidden" : "visible");
  if (last !== null) dot.setAttribute("d", `M${x(values.length - 1).toFixed(1)} ${y(last).toFixed(1)}h0`);
}

/** A share from 0 to 1 as a bar, with its text. null is unknown: no bar. */
export function bar(cell, share, text, tone = "warm") {
  const parts = once(cell, () => ({
    text: make("span", { class: "figure" }),
    track: make("span", { class: "track", "aria-hidden": true }, make("span")),
  }));
  if (parts.text.textContent !== text) parts.text.textContent = text;
  parts.track.dataset.tone = tone;
  parts.track.hidden = share === null;
  parts.track.firstChild.style.inlineSize = `${(100 * Math.min(Math.max(share ?? 0, 0), 1)).toFixed(1)}%`;
}

/** How values are spread over buckets, from the first that has any to the last. */
export function histogram(host, counts) {
  const first = counts.findIndex((each) => each > 0);
  const last = counts.findLastIndex((each) => each > 0);
  const shown = first < 0 ? [] : counts.slice(Math.max(0, first - 1), last + 2);
  const most = Math.max(...shown, 1);
  const width = WIDTH / Math.max(shown.length, 10);
  const bars = shown.map((each, at) => {
    const height = each === 0 ? 0 : Math.max(1.5, (each / most) * (HEIGHT - 4));
    const place = { x: (at * width + 0.5).toFixed(1), y: HEIGHT - 1 - height };
    return draw("rect", { ...place, width: (width - 1).toFixed(1), height, rx: 0.5 });
  });
  const { drawing } = once(host, () => ({
    drawing: draw("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "spread", "aria-hidden": true }),
  }));
  drawing.replaceChildren(...bars);
}
