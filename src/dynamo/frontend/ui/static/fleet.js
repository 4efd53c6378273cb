// The fleet page: joins its parts.

import { key } from "./api.js";
import { $, brief, el, icon } from "./dom.js";
import { Charts } from "./fleet-charts.js";
import { Decisions } from "./fleet-decisions.js";
import { Handoffs, Planners, Prefixes, Sessions, Tiers } from "./fleet-parts.js";
import { amount, clock, duration, name, nameWorkers, Rows, setText, text, workerName } from "./fleet-rows.js";
import { FleetStream } from "./fleet-stream.js";
import { eventText, fate, isGone, WorkerDetail } from "./fleet-worker.js";

const STATES = { live: "Live", broken: "Connecting again…", key: "A key is needed", refused: "Not connected" };

let fleet = null;
let paused = false;
let planned = false;
let before = null;
let speed = null;

const stream = new FleetStream({ onChange: (document) => { fleet = document; plan(); }, onState: showState });
const body = (id) => $(id).querySelector("tbody");
const workers = new Rows(body("workers"), [
  ["id", showWorker],
  name((row) => row.model),
  text((row) => brief(row.role, 20) + (row.rank ? `, rank ${row.rank}` : "")),
  ["", showHealth],
  text((row) => (isGone(row) ? "–" : amount(row.requests)), "number"),
  ["", showBlocks],
  text((row) => amount(row.prefill_tokens), "number"),
  text((row) => amount(row.cached_blocks), "number"),
  text((row) => duration(row.ttft_ms), "number"),
  text((row) => duration(row.itl_ms), "number"),
  name((row) => row.version, (version) => brief(version, 24), ""),
]);
const requests = new Rows(body("requests"), [
  name((_, id) => id, (id) => brief(id, 13), "id"),
  name((row) => row.model, (model) => brief(model, 24)),
  text((row) => brief(row.stage, 20) + (row.migrations ? ` (moved ${row.migrations}×)` : "")),
  text((row) => row.workers.map(workerName).join(", ") || "–"),
  text((row) => amount(row.input_tokens), "number"),
  text((row) => amount(row.output_tokens), "number"),
  text((row) => age(row.started), "number"),
]);
const migrations = new Rows(body("migrations"), [
  text((row) => clock(row.time)),
  name((row) => row.request_id, (id) => brief(id, 13), "id"),
  text((row) => workerName(row.source)),
  text((row) => (row.target ? workerName(row.target) : "–")),
  text((row) => brief(row.outcome, 40)),
  text((row) => duration(row.ms), "number"),
]);
const age = (started) => duration(Math.max(1, Math.round(Date.now() / 1000 - started)) * 1000).replace(".0 ", " ");
const events = new Rows(body("events"), [
  text((row) => clock(row.time)),
  ["id", showWorker],
  text((row) => brief(row.model ?? "–", 40)),
  text(eventText),
]);
const decisions = new Decisions($("decisions"));
const detail = new WorkerDetail({ onKey: () => stream.look() });
const parts = [new Charts(), new Planners(), new Tiers(), new Prefixes((open) => stream.ask(open)), new Sessions(), new Handoffs()];

function showHealth(cell, row) {
  const badge = cell.firstChild ?? cell.appendChild(el("span"));
  setText(badge, isGone(row) ? fate(row) : brief(row.health, 20));
  badge.className = `health ${row.health}`;
}

/** Its name, which opens what is known of it. */
function showWorker(cell, row) {
  const button = cell.firstChild ?? cell.appendChild(el("button", { type: "button", class: "link",
    on: { click: () => detail.open(button.dataset.id, fleet) } }));
  button.dataset.id = row.worker_id;
  const label = workerName(row.rank === undefined ? row.worker_id : `${row.worker_id}/${row.rank}`);
  setText(button, label);
  button.title = `Instance ${brief(row.worker_id, 60)}`;
}

function showBlocks(cell, row) {
  const known = Number.isFinite(row.active_blocks);
  if (!cell.firstChild) cell.append(el("meter", { min: 0, max: 1, value: 0, "aria-label": "Blocks in use" }), el("span"));
  const [meter, figure] = cell.children;
  meter.hidden = !known || !row.total_blocks;
  if (!meter.hidden) meter.value = Math.min(1, row.active_blocks / row.total_blocks);
  setText(figure, known ? amount(row.active_blocks) + (row.total_blocks ? ` of ${amount(row.total_blocks)}` : "") : "–");
}

/** Draw once before the next frame, however many events came. */
function plan() {
  if (planned || paused) return;
  planned = true;
  requestAnimationFrame(() => { planned = false; draw(); });
}

function draw() {
  if (!fleet || paused) return;
  nameWorkers([...Object.values(fleet.workers), ...Object.values(fleet.gone ?? {})]);
  showModels();
  const chosen = $("model").value;
  const wanted = ([, row]) => !chosen || row.model === chosen;
  const word = $("find").value.trim().toLowerCase();
  const found = ([, row]) => !word || [workerName(row.worker_id), row.worker_id, row.host, row.health, row.role]
    .some((text) => String(text ?? "").toLowerCase().includes(word));
  const all = Object.entries(fleet.workers).filter(wanted).filter(found);
  const gone = Object.entries(fleet.gone ?? {}).filter(wanted).filter(found).sort(([, a], [, b]) => b.gone_at - a.gone_at);
  const happened = Object.entries(fleet.events ?? {}).filter(wanted).filter(found).sort(([a], [b]) => b - a);
  all.sort(([a, x], [b, y]) => (x.model < y.model ? -1 : x.model > y.model ? 1 : a < b ? -1 : 1));
  const running = Object.entries(fleet.requests).filter(wanted).sort(([, a], [, b]) => a.started - b.started);
  const moved = Object.entries(fleet.migrations).filter(wanted).reverse();
  workers.show([...all, ...gone]);
  events.show(happened);
  detail.show(fleet);
  requests.show(running);
  migrations.show(moved);
  decisions.show(Object.entries(fleet.decisions).filter(wanted));
  for (const part of parts) part.show(fleet, wanted, all, chosen);
  $("no-workers").hidden = all.length + gone.length > 0;
  setText($("no-workers"), word ? "No worker has this in its name, id, host, health or role." : "No worker has registered yet. This page shows it as soon as one joins.");
  $("events-part").hidden = !happened.length;
  $("no-decisions").hidden = $("decisions").children.length > 0;
  $("requests").hidden = !running.length;
  $("migrations-part").hidden = !moved.length;
  setText($("requests-note"), fleet.running > running.length && !chosen
    ? `The ${running.length} oldest of ${amount(fleet.running)}.` : running.length ? "" : "None.");
  showTotals(all.map(([, row]) => row), Object.entries(fleet.models).filter(([model]) => !chosen || model === chosen));
  document.body.dataset.ready = "";
}

function showTotals(rows, models) {
  const sum = (field) => models.reduce((total, [, model]) => total + (model[field] ?? 0), 0);
  const ready = rows.filter((row) => row.health === "ready").length;
  const placed = sum("requests");
  const now = performance.now();
  if (before?.models !== models.length || placed < before.placed) {
    before = { models: models.length, placed, now };
    speed = null;
  } else if (now - before.now > 2000) {
    speed = (placed - before.placed) / (now - before.now) * 1000;
    before = { ...before, placed, now };
  }
  const prompt = sum("prompt_blocks");
  const totals = {
    "Workers ready": rows.length === ready ? amount(ready) : `${amount(ready)} of ${amount(rows.length)}`,
    "Requests running": amount(sum("running")),
    "Waiting for a worker": amount(sum("waiting")),
    "Requests per second": speed === null ? "–" : speed < 10 ? speed.toFixed(1) : amount(Math.round(speed)),
    "Prompt blocks cached": prompt ? `${Math.round(sum("overlap_blocks") / prompt * 100)} %` : "–",
    "Refused: busy": amount(sum("rejected")),
  };
  // Where several API keys share the workers: the service by which those that wait are apart, and what it may be.
  const fairness = models.map(([, model]) => model.fairness).filter(Boolean);
  const widest = fairness.sort((one, other) => (other.gap / (other.bound ?? Infinity)) - (one.gap / (one.bound ?? Infinity)))[0];
  totals["Keys apart"] = widest ? `${amount(widest.gap)}${widest.bound ? ` of ${amount(widest.bound)}` : ""}` : "–";
  const list = $("totals");
  if (!list.children.length) for (const title of Object.keys(totals)) list.append(el("div", {}, el("dt", {}, title), el("dd")));
  Object.values(totals).forEach((value, index) => setText(list.children[index].lastChild, value));
}

function showModels() {
  const select = $("model");
  const names = Object.keys(fleet.models).sort();
  const shown = [...select.options].slice(1).map((option) => option.value);
  if (JSON.stringify(names) !== JSON.stringify(shown)) {
    const chosen = select.value;
    select.replaceChildren(select.options[0], ...names.map((model) => el("option", { value: model }, brief(model, 40))));
    select.value = names.includes(chosen) ? chosen : "";
  }
  $("filter").hidden = names.length < 2;
}

function showState(state, why) {
  setText($("state"), STATES[state]);
  $("state").classList.toggle("live", state === "live");
  document.querySelector("main").classList.toggle("stale", state !== "live");
  $("key-form").hidden = state !== "key";
  const banner = $("banner");
  banner.hidden = state === "live";
  if (banner.hidden) return;
  banner.replaceChildren(icon("warning"), el("span", {}, brief(why, 300)));
  if (state !== "key") banner.append(el("button", { type: "button", class: "button", on: { click: () => stream.look() } }, "Try now"));
}

$("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  key.set($("key-field").value.trim(), $("key-remember").checked);
  $("key-field").value = "";
  stream.look();
});
$("pause").addEventListener("click", () => {
  paused = !paused;
  $("pause").setAttribute("aria-pressed", String(paused));
  plan();
});
$("model").addEventListener("change", draw);
$("find").addEventListener("input", draw);
setInterval(plan, 1000);
stream.look();
