// Tables whose rows are kept by key: what has not changed is not touched, so that focus, selection and scrolling stay.

import { brief, el, place } from "./dom.js";

const MOST_NAMES = 4096;
const NUMBER = new Intl.NumberFormat("en");
export const amount = (value) => (Number.isFinite(value) ? NUMBER.format(value) : "–");
export const duration = (ms) => (!Number.isFinite(ms) ? "–" : ms < 1000 ? `${ms < 10 ? ms.toFixed(1) : Math.round(ms)} ms` : ms < 60_000 ? `${(ms / 1000).toFixed(1)} s` : `${Math.floor(ms / 60_000)} min`);
export const clock = (seconds) => new Date(seconds * 1000).toLocaleTimeString([], { hour12: false });

/** The names of workers, by their ids; those that left some time ago are forgotten. */
const names = new Map();

export function nameWorkers(rows) {
  for (const row of rows) if (row.name) names.set(row.worker_id, row.name);
  for (const id of names.keys()) if (names.size > MOST_NAMES) names.delete(id);
}

/** A worker by its name, given its id or "id/rank"; one that nobody named by the last digits. */
export function workerName(key) {
  const [id, rank] = String(key).split("/");
  const name = names.get(id);
  return (name ? brief(name, 24) : id.length > 8 ? `…${brief(id.slice(-6), 6)}` : brief(id, 12)) + (rank && rank !== "0" ? `/${brief(rank, 6)}` : "");
}

export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** Rows of a table body. `columns` are [class, fill]: `fill(cell, row, key)` shows a row in its cell. */
export class Rows {
  constructor(body, columns) {
    this.body = body;
    this.columns = columns;
    // On narrow screens each cell has its title beside it.
    this.titles = [...body.parentNode.querySelectorAll("thead th")].map((cell) => cell.textContent);
    this.rows = new Map();
  }

  /** Show these [key, row] pairs, in this order. */
  show(pairs) {
    const kept = new Map();
    for (const [key, row] of pairs) {
      const line = this.rows.get(key) ?? el("tr", {}, ...this.columns.map(([name], index) =>
        index === 0 ? el("th", { scope: "row", class: name, "data-title": this.titles[index] }) : el("td", { class: name, "data-title": this.titles[index] })));
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
