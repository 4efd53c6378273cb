// The list of conversations.

import { $, brief, el, iconButton, place } from "./dom.js";

const NARROW = matchMedia("(max-width: 860px)");
const SHOWN = "dynamo.sidebar";

export class Sidebar {
  /** `act` has open, rename, remove and exportOne, each with a conversation, and create. */
  constructor(act) {
    this.act = act;
    this.rows = new Map();
    $("new").addEventListener("click", () => act.create());
    $("search").addEventListener("input", () => this.render());
    $("open-sidebar").addEventListener("click", () => this.toggle(true));
    $("close-sidebar").addEventListener("click", () => this.toggle(false));
    $("scrim").addEventListener("click", () => this.toggle(false));
    NARROW.addEventListener("change", () => this.toggle(!NARROW.matches));
    this.toggle(!NARROW.matches && localStorage.getItem(SHOWN) !== "no", false);
  }

  get isShown() {
    return !document.body.classList.contains("no-sidebar");
  }

  toggle(shown = !this.isShown, byHand = true) {
    document.body.classList.toggle("no-sidebar", !shown);
    $("sidebar").inert = !shown;
    $("open-sidebar").setAttribute("aria-expanded", String(shown));
    $("scrim").hidden = !(shown && NARROW.matches);
    if (byHand && !NARROW.matches) localStorage.setItem(SHOWN, shown ? "yes" : "no");
    if (byHand) (shown ? $("close-sidebar") : $("open-sidebar")).focus();
  }

  /** On a phone the list covers the page: a choice closes it. */
  chosen() {
    if (NARROW.matches) this.toggle(false, false);
  }

  show(conversations, current) {
    this.conversations = conversations;
    this.current = current;
    this.render();
  }

  render() {
    const wanted = $("search").value.trim().toLowerCase();
    const found = this.conversations.filter((one) => !wanted || matches(one, wanted));
    const nodes = [];
    let group = "";
    for (const conversation of found) {
      const day = dayOf(conversation.updated);
      if (day !== group) nodes.push(el("h2", {}, (group = day)));
      nodes.push(this.row(conversation));
    }
    if (!found.length) nodes.push(el("p", { class: "note" }, wanted ? "Nothing found." : "No conversations yet."));
    place($("conversations"), nodes);
  }

  row(conversation) {
    const title = brief(conversation.title || "New chat", 120);
    const key = `${title} ${conversation.id === this.current}`;
    const kept = this.rows.get(conversation.id);
    if (kept?.key === key) return kept.node;
    const node = el("div", { class: "entry" },
      el("button", { type: "button", class: "open", "aria-current": conversation.id === this.current ? "page" : null,
        on: { click: () => { this.act.open(conversation); this.chosen(); } } }, title),
      el("span", { class: "tools" },
        iconButton("edit", `Rename ${title}`, () => this.act.rename(conversation)),
        iconButton("down", `Export ${title}`, () => this.act.exportOne(conversation)),
        iconButton("trash", `Delete ${title}`, () => this.act.remove(conversation))));
    this.rows.set(conversation.id, { key, node });
    return node;
  }
}

function matches(conversation, wanted) {
  return conversation.title.toLowerCase().includes(wanted)
    || Object.values(conversation.nodes).some((node) => node.text.toLowerCase().includes(wanted));
}

function dayOf(time) {
  const days = Math.round((new Date().setHours(0, 0, 0, 0) - new Date(time).setHours(0, 0, 0, 0)) / 86_400_000);
  if (days <= 0) return "Today";
  if (days === 1) return "Yesterday";
  return days < 8 ? "This week" : "Earlier";
}
