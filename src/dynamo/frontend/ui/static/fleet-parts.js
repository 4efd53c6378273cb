// Parts of the fleet page that are there only if the fleet has them: planners, tiers, cached prefixes, hand-offs.

import { $, brief, el, place } from "./dom.js";
import { amount, clock, duration, name, Rows, setText, workerName, text } from "./fleet-rows.js";

const MOST_SENTENCES = 6;
const DEEPEST = 8;
const WHY = {
  always: "always, by the settings", busy: "prefill workers are busy", cached: "most of it is cached", decode_busy: "the decode worker is busy",
  failed: "prefill failed", measuring: "to measure the costs", needed: "the decode worker computes no prompts", never: "never, by the settings",
  no_prefill: "there is no prefill worker", pinned: "the client named the worker", short: "the prompt is short",
  slow: "most prompts are not worth handing over", threshold: "above the thresholds", unmeasured: "the costs are not known yet", worth: "faster than computing it there",
};
const body = (id) => $(id).querySelector("tbody");
const size = (bytes) => (bytes < 1e6 ? `${(bytes / 1e3).toFixed(0)} kB` : bytes < 1e9 ? `${(bytes / 1e6).toFixed(1)} MB` : `${(bytes / 1e9).toFixed(2)} GB`);
const why = (reason) => (Object.hasOwn(WHY, reason) ? WHY[reason] : brief(reason, 60));

/** A meter and a figure beside it. */
function gauge(cell, label, share, figure) {
  if (!cell.firstChild) cell.append(el("meter", { min: 0, max: 1, value: 0, "aria-label": label }), el("span"));
  const [meter, number] = cell.children;
  meter.hidden = !Number.isFinite(share);
  if (!meter.hidden) meter.value = Math.min(1, share);
  setText(number, figure);
}

/** The last sentences of each planner, the newest first. */
export class Planners {
  show(fleet) {
    const planners = Object.entries(fleet.planners ?? {}).sort(([, a], [, b]) => (a.namespace < b.namespace ? -1 : 1));
    $("planners-part").hidden = !planners.length;
    const drawn = JSON.stringify(planners);
    if (drawn === this.drawn) return;
    this.drawn = drawn;
    place($("planners"), planners.map(([, planner]) => {
      const about = [planners.length > 1 && `Namespace ${brief(planner.namespace, 60)}.`,
        planner.advisory && "It only says what it would do.", planner.state === "silent" && "It has not been heard of lately."];
      const notes = about.filter(Boolean).join(" ");
      return el("div", { class: "planner" }, notes && el("p", {}, notes),
        el("ol", { class: "sentences" }, ...planner.sentences.slice(-MOST_SENTENCES).reverse().map((one) =>
          el("li", {}, el("time", {}, clock(one.time)), el("span", {}, brief(one.text, 600))))));
    }));
  }
}

/** The slower tiers of each worker. */
export class Tiers {
  constructor() {
    this.rows = new Rows(body("tiers"), [
      name((row) => row.worker, workerName, "id"),
      text((row) => brief(row.tier, 20)),
      ["", (cell, row) => {
        const badge = cell.firstChild ?? cell.appendChild(el("span"));
        setText(badge, row.used === undefined ? "–" : row.used ? "on" : "off");
        badge.className = `health ${row.used ? "ready" : ""}`;
        badge.title = row.used === false ? "Restoring is slower than computing" : "";
      }],
      text((row) => amount(row.blocks), "number"),
      ["", (cell, row) => gauge(cell, "Bytes held", row.limit_bytes ? row.bytes / row.limit_bytes : NaN,
        row.limit_bytes ? `${size(row.bytes)} of ${size(row.limit_bytes)}` : "–")],
      text((row) => (row.hits + row.misses ? `${Math.round(row.hits / (row.hits + row.misses) * 100)} %` : "–"), "number"),
      text((row) => amount(row.restored_tokens), "number"),
      text((row) => duration(row.saved_seconds * 1000), "number"),
    ]);
  }

  show(_, __, workers) {
    const rows = workers.flatMap(([key, worker]) => Object.entries(worker.tiers ?? {}).map(([tier, row]) =>
      [`${key}/${tier}`, { ...row, tier, worker: `${worker.worker_id}/${worker.rank}` }]));
    $("tiers-part").hidden = !rows.length;
    this.rows.show(rows);
  }
}

/** The largest cached prefixes as a tree; `ask` is called with whether someone looks at it. */
export class Prefixes {
  constructor(ask) {
    this.most = 1;
    this.rows = new Rows(body("prefixes"), [
      ["id", (cell, row, key) => {
        const hash = key.slice(key.lastIndexOf("/") + 1);
        const label = cell.firstChild ?? cell.appendChild(el("span"));
        setText(label, hash.slice(0, 8) + (row.tier ? ` (${brief(row.tier, 12)})` : ""));
        label.className = row.depth ? "deeper" : "";
        label.title = brief(hash, 40);
        cell.style.setProperty("--depth", row.depth);
      }],
      name((row) => row.model + (row.role === "aggregated" ? "" : `, ${row.role}`)),
      text((row) => amount(row.begin * row.tokens / row.blocks), "number"),
      text((row) => amount(row.tokens), "number"),
      ["", (cell, row) => gauge(cell, "Share of the largest", row.held / this.most, amount(row.held))],
      text((row) => {
        const more = row.holders - row.workers.length;
        return `${amount(row.holders)}: ${row.workers.map(workerName).join(", ")}${more > 0 ? ` and ${amount(more)} more` : ""}`;
      }),
    ]);
    this.part = $("prefixes-part");
    this.part.addEventListener("toggle", () => ask(this.part.open));
  }

  show(fleet, wanted) {
    if (!this.part.open) return;
    const all = Object.entries(fleet.prefixes ?? {}).filter(wanted);
    this.most = Math.max(1, ...all.map(([, row]) => row.held));
    const rows = tree(all);
    $("prefixes").hidden = !rows.length;
    $("no-prefixes").hidden = rows.length > 0;
    const known = Object.values(fleet.models).some((model) => model.known_blocks);
    setText($("no-prefixes"), known ? "Looking…" : "No cached blocks are known. Routers know of them with --router-mode kv.");
    this.rows.show(rows);
  }
}

/** Parents before their children, and among siblings the most held first; each row gets its depth. */
function tree(pairs) {
  const known = new Set(pairs.map(([key]) => key));
  const below = new Map();
  for (const [key, row] of [...pairs].sort(([, a], [, b]) => b.held - a.held)) {
    const parent = known.has(row.parent) ? row.parent : "";
    below.set(parent, [...(below.get(parent) ?? []), [key, row]]);
  }
  const rows = [];
  const waiting = (below.get("") ?? []).map((pair) => [pair, 0]).reverse();
  while (waiting.length) {
    const [[key, row], depth] = waiting.pop();
    rows.push([key, { ...row, depth: Math.min(depth, DEEPEST) }]);
    for (const pair of (below.get(key) ?? []).reverse()) waiting.push([pair, depth + 1]);
  }
  return rows;
}

/** The sessions used last, the turns of each on one line. */
export class Sessions {
  constructor() {
    this.rows = new Rows(body("sessions"), [
      text((row) => clock(row.time)),
      name((row) => row.id, (id) => brief(id, 20), "id"),
      text((row) => brief(row.model, 30)),
      text((row) => (row.worker_id ? workerName(row.worker_id) : "–")),
      text((row) => amount(row.turns), "number"),
      text((row) => (row.pause_s === undefined ? "–" : duration(row.pause_s * 1000)), "number"),
      text((row) => amount(row.prompt_tokens), "number"),
      text((row) => (row.cached_percent ?? []).map((share) => `${Number(share)} %`).join(" ") + (row.changed ? `: ${brief(row.changed, 200)}` : "")),
    ]);
  }

  show(fleet, wanted) {
    const rows = Object.entries(fleet.sessions ?? {}).filter(wanted).sort(([, a], [, b]) => b.time - a.time);
    $("sessions-part").hidden = !rows.length;
    this.rows.show(rows);
  }
}

/** The last prompts of decode workers, and how many were handed over for which reason. */
export class Handoffs {
  constructor() {
    this.rows = new Rows(body("handoffs"), [
      text((row) => clock(row.time)),
      name((row) => row.request_id, (id) => brief(id, 13), "id"),
      text((row) => (row.prefill ? workerName(row.prefill) : "–")),
      text((row) => workerName(row.decode)),
      text((row) => `${row.prefill ? "split" : "not split"}: ${why(row.reason)}`),
      text((row) => brief(row.stage, 20)),
      text((row) => amount(row.uncached_tokens), "number"),
      text((row) => duration(row.prefill_ms), "number"),
      text((row) => duration(row.handoff_ms), "number"),
    ]);
  }

  show(fleet, wanted) {
    const rows = Object.entries(fleet.handoffs ?? {}).filter(wanted).sort(([, a], [, b]) => b.time - a.time);
    $("handoffs-part").hidden = !rows.length;
    this.rows.show(rows);
    const models = Object.entries(fleet.models).filter(([model]) => wanted([model, { model }]));
    setText($("handoffs-note"), ["split", "local"].map((kind) => counted(kind, models)).filter(Boolean).join(" "));
  }
}

function counted(kind, models) {
  const counts = new Map();
  for (const [, model] of models) {
    for (const [reason, count] of Object.entries(model.splits?.[kind] ?? {})) counts.set(reason, (counts.get(reason) ?? 0) + count);
  }
  const total = [...counts.values()].reduce((sum, count) => sum + count, 0);
  if (!total) return "";
  const reasons = [...counts].sort(([, a], [, b]) => b - a).map(([reason, count]) => `${why(reason)} ${amount(count)}`);
  return `${kind === "split" ? "Split" : "Not split"} ${amount(total)} (${reasons.join(", ")}).`;
}
