// Elements, made and changed in place so that focus and a reader's position survive an update.
// Text goes in as text: nothing here, and nothing that uses it, ever parses HTML.

const SVG = "http://www.w3.org/2000/svg";

/** An element with these attributes; strings among the children become text. */
export function make(tag, attributes = {}, ...children) {
  return finish(document.createElement(tag), attributes, children);
}

/** The same for a drawing. */
export function draw(tag, attributes = {}, ...children) {
  return finish(document.createElementNS(SVG, tag), attributes, children);
}

function finish(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

/** Set a text, unless it is there already. */
export function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** The children of a node, made once by `build` and kept in it. */
export function once(node, build) {
  if (node.parts === undefined) {
    node.parts = build();
    node.replaceChildren(...Object.values(node.parts));
  }
  return node.parts;
}

/** Show a sentence in place of what there is not; null takes it away. */
export function empty(host, sentence) {
  let note = host.querySelector(":scope > .empty");
  if (sentence === null) {
    note?.remove();
    return;
  }
  if (note === null) {
    note = make("p", { class: "empty" });
    host.append(note);
  }
  say(note, sentence);
}

/**
 * A table whose rows are known by a key. A column is {head, fill, kind}: `fill(cell, row)` writes a cell, or gives
 * its text; `kind` is "number" where it is one. The first column heads its row. Roles are spelt out, since on a
 * narrow screen rows are laid out as cards.
 */
export class Table {
  constructor(host, caption, columns) {
    this.columns = columns;
    this.rows = new Map();
    this.body = make("tbody", { role: "rowgroup" });
    const heads = columns.map(({ head, kind }) =>
      make("th", { scope: "col", role: "columnheader", class: kind }, head),
    );
    this.element = make(
      "table",
      { role: "table" },
      make("caption", { class: "unseen" }, caption),
      make("thead", { role: "rowgroup" }, make("tr", { role: "row" }, ...heads)),
      this.body,
    );
    host.append(this.element);
  }

  show(rows, key) {
    this.element.hidden = rows.length === 0;
    const gone = new Set(this.rows.keys());
    rows.forEach((row, place) => {
      const name = key(row);
      gone.delete(name);
      let line = this.rows.get(name);
      if (line === undefined) {
        line = this.line();
        this.rows.set(name, line);
      }
      this.columns.forEach(({ fill }, at) => {
        const text = fill(line.cells[at], row);
        if (text !== undefined) say(line.cells[at], text);
      });
      if (this.body.children[place] !== line) this.body.insertBefore(line, this.body.children[place] ?? null);
    });
    for (const name of gone) {
      this.rows.get(name).remove();
      this.rows.delete(name);
    }
  }

  line() {
    const cells = this.columns.map(({ head, kind }, at) =>
      at === 0
        ? make("th", { scope: "row", role: "rowheader", class: kind })
        : make("td", { role: "cell", class: kind, "data-head": head }),
    );
    return make("tr", { role: "row" }, ...cells);
  }
}
