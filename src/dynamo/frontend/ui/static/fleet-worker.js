// One worker: what is known of it, and what an administrator can do with it.

import { request, ServerError } from "./api.js";
import { $, brief, el, place } from "./dom.js";
import { amount, clock, setText, workerName } from "./fleet-rows.js";

const GONE = new Set(["lost", "left", "gone"]);
const ORDERS = {
  drain: ["Drain", "Give it no new requests; those that run there finish", "gets no new requests"],
  resume: ["Resume", "Give it requests again", "gets requests again"],
  remove: ["Remove", "Let it finish what runs, then end its process", "finishes what runs there and ends"],
};

export const isGone = (row) => GONE.has(row.health);

/** How long ago, or for how long. */
export function span(seconds) {
  if (!Number.isFinite(seconds) || seconds < 0) return "–";
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  return seconds < 172_800 ? `${Math.round(seconds / 3600)} h` : `${Math.round(seconds / 86_400)} days`;
}

const moved = (row) => (row.moved ? `, ${amount(row.moved)} ${row.moved === 1 ? "request" : "requests"} moved` : "");

/** What became of a worker that is not there any more. */
export const fate = (row) => `${brief(row.health, 12)} at ${clock(row.gone_at)}${moved(row)}`;

export const eventText = (event) => `${brief(event.kind, 40)}${moved(event)}`;

export class WorkerDetail {
  constructor({ onKey }) {
    this.onKey = onKey;
    this.dialog = $("worker");
    this.id = null;
    $("worker-orders").replaceChildren(...Object.entries(ORDERS).map(([action, [label, hint]]) =>
      el("button", { type: "button", class: action === "remove" ? "button danger" : "button", title: hint, "data-action": action,
        on: { click: () => this.order(action) } }, label)));
  }

  open(id, fleet) {
    this.id = id;
    this.confirmed = null;
    setText($("worker-said"), "");
    this.show(fleet);
    this.dialog.showModal();
  }

  show(fleet) {
    if (this.id === null) return;
    const rows = [...Object.values(fleet.workers), ...Object.values(fleet.gone ?? {})].filter((row) => row.worker_id === this.id);
    const [row] = rows;
    if (!row) return;
    const adapters = rows.filter((one) => one.base_model && !isGone(one)).map((one) => one.model);
    const now = Date.now() / 1000;
    const facts = {
      Model: row.base_model ?? row.model, Engine: row.engine, Role: row.role, Health: isGone(row) ? fate(row) : row.health,
      Host: row.host, Process: row.pid, "Up for": row.started && !isGone(row) ? span(now - row.started) : undefined, GPUs: row.gpus ?? (row.device === "cpu" ? "none" : undefined),
      Ranks: rows.length > adapters.length + 1 ? rows.length - adapters.length : undefined, Adapters: adapters.length ? adapters.join(", ") : undefined,
      "KV blocks": row.total_blocks && amount(row.total_blocks), "Requests at a time": row.max_requests && amount(row.max_requests),
      Address: row.address, Endpoint: row.endpoint, "Instance id": row.worker_id, "in hexadecimal": hex(row.worker_id), Version: row.version,
    };
    setText($("worker-title"), `Worker ${workerName(row.worker_id)}`);
    const shown = JSON.stringify(facts);
    if (shown !== this.drawn) {
      this.drawn = shown;
      place($("worker-facts"), Object.entries(facts).filter(([, value]) => value !== undefined && value !== null).flatMap(([title, value]) =>
        [el("dt", {}, title), el("dd", {}, brief(value, 200))]));
    }
    $("worker-orders").hidden = isGone(row);
    for (const button of $("worker-orders").children) {
      button.hidden = button.dataset.action === (row.health === "draining" ? "drain" : "resume");
    }
  }

  /** Ending a process takes a second click. */
  async order(action) {
    const said = $("worker-said");
    if (action === "remove" && this.confirmed !== this.id) {
      this.confirmed = this.id;
      setText(said, "Its process ends once what runs there is finished. Click Remove again to do that.");
      return;
    }
    this.confirmed = null;
    setText(said, "Asking the worker…");
    try {
      await request(`fleet/workers/${encodeURIComponent(this.id)}/${action}`, { method: "POST" });
      setText(said, `It ${ORDERS[action][2]}.`);
    } catch (error) {
      if (!(error instanceof ServerError)) throw error;
      setText(said, error.message);
      if (error.kind === "key") {
        this.dialog.close();
        this.onKey();
      }
    }
  }
}

function hex(id) {
  try {
    return BigInt(id).toString(16);
  } catch {
    return undefined;
  }
}
