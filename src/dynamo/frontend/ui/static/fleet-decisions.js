// The last decisions of the routers: a line each, and why when it is opened.

import { brief, el, place } from "./dom.js";
import { amount, clock, duration, workerName } from "./fleet-rows.js";

const COLUMNS = [
  ["Cost", "The lowest wins", (one) => amount(one.cost)],
  ["Cached", "Blocks of the prompt that need not be computed there", (one) => amount(one.cached_blocks)],
  ["To compute", "Tokens of the prompt", (one) => amount(one.prefill_tokens)],
  ["Queued", "Tokens of other prompts that are computed first", (one) => amount(one.waiting_tokens)],
  ["Blocks", "KV blocks in use if this request joins", (one) => amount(one.decode_blocks)],
  ["Requests", "Requests there", (one) => amount(one.requests)],
  ["Work", "Part of the cost: tokens to compute", (one) => amount(one.work)],
  ["+ Waiting", "Part of the cost: prompts that come first", (one) => amount(one.waiting)],
  ["+ Crowding", "Part of the cost: blocks in use", (one) => amount(one.crowding)],
  ["+ Spreading", "Part of the cost: recent traffic", (one) => amount(one.spreading)],
];

export class Decisions {
  constructor(box) {
    this.box = box;
    this.lines = new Map();
  }

  /** Show these [number, decision] pairs, the newest first. One that is open stays, also when it is no longer among them. */
  show(pairs) {
    const lines = new Map();
    for (const [number, decision] of pairs) lines.set(number, this.lines.get(number) ?? line(decision));
    for (const [number, node] of this.lines) if (node.open) lines.set(number, node);
    this.lines = lines;
    place(this.box, [...lines].sort(([a], [b]) => b - a).map(([, node]) => node));
  }
}

function line(decision) {
  const chosen = decision.candidates?.find((one) => one.worker === decision.worker);
  const facts = [
    el("span", { class: "soft" }, clock(decision.time)),
    el("span", {}, `→ ${workerName(decision.worker)}`),
    el("span", {}, brief(decision.model, 40)),
    el("span", { class: "soft" }, chosen
      ? `${amount(chosen.cached_blocks)} of ${amount(decision.prompt_blocks)} blocks cached, cost ${amount(chosen.cost)}`
      : brief(decision.mode, 40)),
  ];
  const node = el("details", { class: "decision" }, el("summary", {}, ...facts));
  // Built when it is opened: most never are.
  node.addEventListener("toggle", () => node.children.length > 1 || node.append(why(decision, chosen)), { once: true });
  return node;
}

function why(decision, chosen) {
  const box = el("div", { class: "why" },
    el("p", {}, sentence(decision, chosen)),
    decision.passed_over && el("p", {}, `Although ${brief(decision.passed_over, 400)}.`),
    el("p", { class: "soft" }, "Request ", el("span", { class: "id" }, brief(decision.request_id, 80))));
  if (decision.candidates) box.append(candidates(decision));
  return box;
}

function sentence(decision, chosen) {
  const where = `Worker ${workerName(decision.worker)}`;
  const waited = decision.waited_ms >= 1 ? ` It waited ${duration(decision.waited_ms)} for a worker.` : "";
  if (decision.pinned) return `${where}: the client named it.${waited}`;
  const workers = decision.considered === 1 ? "the only worker there was" : `one of ${amount(decision.considered)} that could take it`;
  if (!chosen) return `${where}, ${workers}, by ${brief(decision.mode, 40)}; ${amount(decision.in_flight)} requests were there already.${waited}`;
  return `${where}, ${workers}: it had ${amount(chosen.cached_blocks)} of the prompt's ${amount(decision.prompt_blocks)} blocks cached, and a cost of ${amount(chosen.cost)}.${waited}`;
}

function candidates(decision) {
  const head = el("tr", {}, el("th", { scope: "col" }, "Candidate"),
    ...COLUMNS.map(([title, hint]) => el("th", { scope: "col", class: "number", title: hint }, title)));
  const rows = decision.candidates.map((one) => el("tr", { class: one.worker === decision.worker && "chosen" },
    el("th", { scope: "row", title: brief(one.worker, 40) }, workerName(one.worker) + (one.worker === decision.worker ? " (chosen)" : "")),
    ...COLUMNS.map(([, , read]) => el("td", { class: "number" }, read(one)))));
  const region = { class: "wide-table", role: "group", "aria-label": "Candidates", tabindex: "0" };
  return el("div", region, el("table", {}, el("thead", {}, head), el("tbody", {}, ...rows)));
}
