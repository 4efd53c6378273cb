// Tables whose rows are kept by key: what has not changed is not touched, so that focus, selection and scrolling stay.

import { brief, el, place } from "./dom.js";

const NUMBER = new Intl.NumberFormat("en");
export const amount = (value) => (Number.isFinite(value) ? NUMBER.format(value) : "–");
export const duration = (ms) => (!Number.isFinite(ms) ? "–" : ms < 1000 ? `${ms < 10 ? ms.toFixed(1) : Math.round(ms)} ms` : ms < 60_000 ? `${(ms / 1000).toFixed(1)} s` : `${Math.floor(ms / 60_000)} min`);
export const clock = (seconds) => new Date(seconds * 1000).toLocaleTimeString([], { hour12: false });

/** A worker's id, or "id/rank", in short: the last digits, which tell workers apart. */
export function shortWorker(key) {
  const [id, rank] = String(key).split("/");
  return (id.length > 8 ? `…${brief(id.slice(-6), 6)}` : brief(id, 12)) + (rank && rank !== "0" ? `/${brief(rank, 6)}` : "");
}

export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** Rows of a table body. `columns` are [class, fill]: `fill(cell, row, key)` shows a row in its cell. */
export class Rows {
  constructor(body, columns) {
    this.body = body;
    this.columns = columns;
    this.rows = new Map();
  }

  /** Show these [key, row] pairs, in this order. */
  show(pairs) {
    const kept = new Map();
    for (const [key, row] of pairs) {
      const line = this.rows.get(key) ?? el("tr", {}, ...this.columns.map(([name], index) =>
        index === 0 ? el("th", { scope: "row", class: name }) : el("td", { class: name })));
      this.columns.forEach(([, fill], index) => fill(line.children[index], row, key));
      kept.set(key, line);
    }
    this.rows = kept;
    place(this.body, kept.values());
  }
}

/** A column of text. */
export const text = (read, name = "") => [name, (cell, row, key) => setText(cell, read(row, key))];

/** A column of a long text: in short, and whole as its title. */
export const name = (read, show = (value) => brief(value, 60), style = "name") => [style, (cell, row, key) => {
  const value = String(read(row, key) ?? "–");
  setText(cell, show(value));
  if (cell.title !== value) cell.title = brief(value, 300);
}];
