// The last hour as small charts: tokens per second, TTFT, queue and cached share, as the server has kept them.

import { $, el, place } from "./dom.js";
import { amount, clock, duration, setText } from "./fleet-rows.js";

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 240;
const HEIGHT = 48;
/** Seconds that a chart shows at least; a server that runs longer shows up to an hour. */
const SHORTEST = 300;
/** Longer pauses between samples are gaps: the server was not there. */
const GAP = 30;
const CHARTS = [
  ["tokens", "Tokens per second", amount],
  ["ttft_ms", "Time to first token", duration],
  ["waiting", "Waiting for a worker", amount],
  ["cached", "Of prompts cached", (share) => (Number.isFinite(share) ? `${Math.round(share * 100)} %` : "–")],
];

export class Charts {
  constructor() {
    this.charts = CHARTS.map(([field, title, show]) => new Chart(field, title, show));
    place($("charts"), this.charts.map((chart) => chart.node));
  }

  show(fleet, _, __, model) {
    const history = fleet.history ?? {};
    const samples = Object.entries((Object.hasOwn(history, model) ? history[model] : null) ?? {})
      .map(([time, sample]) => ({ time: Number(time), ...sample })).filter((sample) => sample.time > 0).sort((a, b) => a.time - b.time);
    $("history-part").hidden = !samples.length;
    const minutes = Math.round(((samples.at(-1)?.time ?? 0) - (samples[0]?.time ?? 0)) / 60);
    setText($("history-title"), minutes >= 59 ? "The last hour" : `The last ${Math.max(5, minutes)} minutes`);
    for (const chart of this.charts) chart.show(samples);
  }
}

class Chart {
  constructor(field, title, show) {
    this.field = field;
    this.format = show;
    this.line = shape("path", { class: "line" });
    this.area = shape("path", { class: "area" });
    this.picture = shape("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img" }, this.area, this.line);
    this.now = el("strong");
    this.most = el("span", { class: "soft" });
    this.node = el("figure", { class: "chart" }, el("figcaption", {}, el("span", {}, title), this.now, this.most), this.picture);
    this.title = title;
    this.picture.addEventListener("pointermove", (event) => this.point(event));
    this.picture.addEventListener("pointerleave", () => this.figures());
  }

  show(samples) {
    const drawn = `${samples.length}/${samples.at(-1)?.time}/${samples[0]?.time}/${samples.at(-1)?.[this.field]}`;
    if (drawn === this.drawn) return;
    this.drawn = drawn;
    this.samples = samples.filter((sample) => Number.isFinite(sample[this.field]));
    const end = samples.at(-1)?.time ?? 0;
    const highest = Math.max(0, ...this.samples.map((sample) => sample[this.field])) || 1;
    const range = Math.max(SHORTEST, end - (samples[0]?.time ?? end));
    this.x = (time) => WIDTH * (1 - (end - time) / range);
    const y = (value) => HEIGHT - 1 - (HEIGHT - 4) * Math.max(0, value) / highest;
    let line = "";
    let area = "";
    let run = [];
    const close = () => {
      if (!run.length) return;
      const points = run.map((sample) => `${this.x(sample.time).toFixed(1)},${y(sample[this.field]).toFixed(1)}`);
      line += `M${points.join("L")}${run.length === 1 ? "h.5" : ""}`;
      area += `M${this.x(run[0].time).toFixed(1)},${HEIGHT}L${points.join("L")}L${this.x(run.at(-1).time).toFixed(1)},${HEIGHT}Z`;
      run = [];
    };
    for (const sample of this.samples) {
      if (run.length && sample.time - run.at(-1).time > GAP) close();
      run.push(sample);
    }
    close();
    this.line.setAttribute("d", line);
    this.area.setAttribute("d", area);
    this.figures();
  }

  figures() {
    const values = this.samples.map((sample) => sample[this.field]);
    const last = this.format(values.at(-1));
    const most = values.length ? `at most ${this.format(Math.max(...values))}` : "nothing yet";
    setText(this.now, last);
    setText(this.most, most);
    this.picture.setAttribute("aria-label", `${this.title} over the last hour: ${last} now, ${most}`);
  }

  /** The figure where the pointer is. */
  point(event) {
    const box = this.picture.getBoundingClientRect();
    const at = (event.clientX - box.left) / box.width * WIDTH;
    let nearest = null;
    for (const sample of this.samples ?? []) if (!nearest || Math.abs(this.x(sample.time) - at) < Math.abs(this.x(nearest.time) - at)) nearest = sample;
    if (!nearest) return;
    setText(this.now, this.format(nearest[this.field]));
    setText(this.most, clock(nearest.time));
  }
}

function shape(name, attributes, ...children) {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}
