// The view of one message. `actions` is what the thread can do with it.

import { openCalls } from "./conversation.js";
import { brief, copy, el, icon, iconButton, visible } from "./dom.js";
import { CodeView, MarkdownView } from "./markdown.js";

export function messageView(node, actions) {
  const kinds = { user: UserView, assistant: AnswerView, tool: ResultView };
  return new kinds[node.role](node, actions);
}

class MessageBase {
  constructor(node, actions, label, kind) {
    this.actions = actions;
    this.id = node.id;
    this.foot = el("div", { class: "foot" });
    this.node = el("article", { class: `message ${kind}`, "aria-label": label });
  }

  /** "‹ 2/3 ›" where there are several versions of this message. */
  branches(node, all) {
    if (all.length < 2) return null;
    const at = all.findIndex((other) => other.id === node.id);
    const step = (by) => this.actions.branch(all[at + by].id);
    return el("span", { class: "branches" },
      iconButton("left", "Previous version", () => step(-1), { disabled: at === 0 }),
      el("span", { "aria-label": `Version ${at + 1} of ${all.length}` }, `${at + 1}/${all.length}`),
      iconButton("right", "Next version", () => step(1), { disabled: at === all.length - 1 }));
  }

  /** Replace the buttons, but not while one of them has the focus for no reason. */
  setFoot(key, make) {
    if (this.footKey === key) return;
    const label = this.foot.contains(document.activeElement) ? document.activeElement.getAttribute("aria-label") : null;
    this.footKey = key;
    this.foot.replaceChildren(...make().filter(Boolean));
    if (label) [...this.foot.querySelectorAll("button")].find((one) => one.getAttribute("aria-label") === label)?.focus();
  }
}

class UserView extends MessageBase {
  constructor(node, actions) {
    super(node, actions, "You", "user");
    // A long one scrolls, which the keyboard must be able to do.
    const scrolls = node.text.length > 400 || node.text.split("\n").length > 8;
    this.body = el("div", { class: "bubble", dir: "auto", tabindex: scrolls ? "0" : null }, visible(node.text));
    this.pictures = el("div", { class: "pictures" }, ...(node.images ?? []).map((url, index) =>
      el("img", { src: url, alt: `Picture ${index + 1} you sent` })));
    this.node.append(...(node.images?.length ? [this.pictures] : []), ...(node.text ? [this.body] : []), this.foot);
  }

  update(node, { versions, busy }) {
    this.setFoot(`${versions.map((one) => one.id)} ${busy}`, () => [
      this.branches(node, versions),
      iconButton("edit", "Edit", () => this.edit(node), { disabled: busy }),
      iconButton("copy", "Copy message", (event) => copy(node.text, event.currentTarget)),
    ]);
  }

  edit(node) {
    const area = el("textarea", { class: "edit", "aria-label": "Edit message", rows: Math.min(12, node.text.split("\n").length + 1) });
    area.value = node.text;
    const close = () => {
      form.replaceWith(this.body);
      this.foot.hidden = false;
      this.foot.querySelector("[aria-label=Edit]")?.focus();
    };
    const send = (event) => {
      event?.preventDefault();
      if (!area.value.trim() && !node.images?.length) return;
      close();
      this.actions.edit(node, area.value);
    };
    const form = el("form", { class: "editing", on: { submit: send } }, area, el("div", { class: "row" },
      el("button", { type: "button", class: "button", on: { click: close } }, "Cancel"),
      el("button", { type: "submit", class: "button primary" }, "Send")));
    area.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) send(event);
      if (event.key === "Escape") {
        event.stopPropagation();
        close();
      }
    });
    this.node.insertBefore(form, this.foot);
    this.body.remove();
    this.foot.hidden = true;
    area.focus();
  }
}

class AnswerView extends MessageBase {
  constructor(node, actions) {
    super(node, actions, `Answer of ${brief(node.model)}`, "answer");
    this.markdown = new MarkdownView();
    this.thought = new MarkdownView();
    this.summary = el("summary", {}, "Reasoning");
    this.reasoning = el("details", { class: "reasoning", hidden: true }, this.summary, this.thought.node);
    // What is folded is rendered when it is opened.
    this.reasoning.addEventListener("toggle", () => this.reasoning.open && this.thought.set(this.current.reasoning, this.isFinal()));
    this.calls = el("div", { class: "calls" });
    this.callViews = [];
    this.problem = el("div", { class: "problem", hidden: true });
    this.node.append(el("h2", { class: "who", title: visible(node.model).slice(0, 300) }, brief(node.model, 60)),
      this.reasoning, this.markdown.node, this.calls, this.problem, this.foot);
  }

  isFinal() {
    return this.current.state !== "running";
  }

  /** New text only: called for each frame while the answer arrives. */
  grow(node) {
    this.current = node;
    const running = !this.isFinal();
    this.markdown.set(node.text, !running);
    if (node.reasoning) {
      this.reasoning.hidden = false;
      if (this.reasoning.open) this.thought.set(node.reasoning, !running);
      const label = running && !node.text ? "Thinking…" : "Reasoning";
      if (this.summary.textContent !== label) this.summary.textContent = label;
    }
    node.calls?.forEach((call, index) => {
      const view = (this.callViews[index] ??= this.addCall(call));
      view.set(call, !running);
    });
    const waiting = running && !node.text && !node.calls?.length;
    this.node.classList.toggle("running", running);
    this.node.classList.toggle("waiting", waiting && !node.reasoning);
    this.node.setAttribute("aria-busy", String(running));
  }

  update(node, { versions, busy, path }) {
    this.grow(node);
    this.problem.hidden = !(node.state === "failed" || (node.state === "stopped" && !node.text && !node.calls?.length));
    if (!this.problem.hidden) {
      const why = node.state === "failed" ? visible(node.error || "The answer failed.").slice(0, 2000) : "Stopped before the first word.";
      this.problem.replaceChildren(icon("warning"), el("span", {}, why),
        el("button", { type: "button", class: "button", disabled: busy, on: { click: () => this.actions.retry(node) } }, "Retry"));
    }
    const open = node.state === "running" ? [] : openCalls(path, node);
    this.answerForm(node, open, busy);
    this.setFoot(`${versions.map((one) => one.id)} ${node.state} ${busy} ${node.stats ? 1 : 0}`, () => node.state === "running" ? [] : [
      this.branches(node, versions),
      iconButton("copy", "Copy answer", (event) => copy(node.text, event.currentTarget)),
      iconButton("retry", "Retry", () => this.actions.retry(node), { disabled: busy }),
      statsLine(node),
    ]);
  }

  addCall(call) {
    const view = new CallView();
    view.set(call, false);
    this.calls.append(view.node);
    return view;
  }

  /** Fields for the results of calls that have none. */
  answerForm(node, open, busy) {
    const key = open.map((call) => call.id).join() + busy;
    if (this.formKey === key) return;
    this.formKey = key;
    this.form?.remove();
    this.form = null;
    if (!open.length) return;
    const areas = open.map((call) => el("textarea", {
      rows: 2, "aria-label": `Result of ${brief(call.name)}`, placeholder: `Result of ${brief(call.name, 40)}`, required: true }));
    const send = (event) => {
      event.preventDefault();
      this.actions.results(node, open.map((call, index) => ({ call, text: areas[index].value })));
    };
    this.form = el("form", { class: "results", on: { submit: send } }, ...areas,
      el("div", { class: "row" }, el("button", { type: "submit", class: "button primary", disabled: busy },
        open.length > 1 ? "Send results" : "Send result")));
    this.calls.after(this.form);
  }
}

/** A call of a tool, with its arguments. */
class CallView {
  constructor() {
    this.name = el("span", { class: "name" });
    this.code = new CodeView("json");
    this.node = el("div", { class: "call" }, el("div", { class: "title" }, icon("tool"), this.name), this.code.node);
  }

  set(call, final) {
    const key = `${call.name.length} ${call.arguments.length} ${final}`;
    if (this.key === key) return;
    this.key = key;
    this.name.textContent = brief(call.name) || "…";
    this.code.set(visible(final ? indented(call.arguments) : call.arguments), final);
  }
}

function indented(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

class ResultView extends MessageBase {
  constructor(node, actions) {
    super(node, actions, `Result of ${brief(node.name ?? "tool")}`, "result");
    this.node.append(el("div", { class: "call" },
      el("div", { class: "title" }, icon("tool"), el("span", { class: "name" }, `Result of ${brief(node.name ?? "tool")}`)),
      el("pre", { dir: "auto", tabindex: "0" }, visible(node.text))));
  }

  update() {}
}

const NUMBER = new Intl.NumberFormat("en");
const amount = (value, digits = 0) => NUMBER.format(Number(value.toFixed(digits)));

function statsLine(node) {
  const { stats } = node;
  if (!stats) return null;
  const facts = [];
  const add = (text, title, ...more) => facts.push(el("span", { title, class: more[0] ?? null }, text));
  if (Number.isFinite(stats.speed)) add(`${amount(stats.speed, stats.speed < 10 ? 1 : 0)} tokens/s`, "Speed after the first token");
  if (Number.isFinite(stats.ttft)) add(`first token ${stats.ttft < 1000 ? `${amount(stats.ttft)} ms` : `${amount(stats.ttft / 1000, 1)} s`}`, "Time to first token");
  if (Number.isFinite(stats.tokens)) add(`${amount(stats.tokens)} tokens`, `${stats.prompt} tokens in the prompt`);
  if (Number.isFinite(stats.cached)) add(`${amount(stats.cached)} of ${amount(stats.prompt)} cached`, "Tokens of the prompt that were in the worker's cache");
  if (stats.worker) add(`worker ${brief(stats.worker, 24)}`, stats.prefill ? `Prefill by worker ${brief(stats.prefill, 24)}` : "Which worker answered", "worker");
  if (stats.full >= .5) add(`${amount(Math.min(stats.full, 1) * 100)} % of the context`, "How much of the model's context this conversation fills", stats.full >= .9 ? "cut" : null);
  if (node.dropped) add(`without the ${node.dropped} oldest messages`, "The model's context is too short for the whole conversation", "cut");
  if (node.finish === "length") add("cut at the limit", "The answer reached max_tokens or the model's context", "cut");
  if (node.state === "stopped") add("stopped", "You stopped this answer");
  return facts.length ? el("span", { class: "stats" }, ...facts) : null;
}
