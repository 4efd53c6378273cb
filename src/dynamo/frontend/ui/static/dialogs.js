// Small dialogs: a question, a key, and the request as code.

import { key } from "./api.js";
import { $ } from "./dom.js";
import { CodeView } from "./markdown.js";
import { asCurl, asPython } from "./snippets.js";

/** Ask; with `value`, for a text. Resolves to the text, true, or null for no. */
export function question(text, yes, value) {
  const dialog = $("question");
  $("question-text").textContent = text;
  $("question-yes").textContent = yes;
  $("question-label").hidden = value === undefined;
  $("question-field").value = value ?? "";
  dialog.returnValue = "";
  dialog.showModal();
  (value === undefined ? $("question-yes") : $("question-field")).focus();
  return new Promise((resolve) => {
    const answer = () => (dialog.returnValue ? (value === undefined ? true : $("question-field").value) : null);
    dialog.addEventListener("close", () => resolve(answer()), { once: true });
    // Enter in the field would press the first button, which is no.
    $("question-field").onkeydown = (event) => {
      if (event.key !== "Enter" || event.isComposing) return;
      event.preventDefault();
      dialog.close("yes");
    };
  });
}

/** Asks for a key; `onKey` is called when there is a new one. */
export class KeyDialog {
  constructor(onKey) {
    this.dialog = $("key-dialog");
    $("key-later").addEventListener("click", () => this.dialog.close());
    $("key-form").addEventListener("submit", () => {
      key.set($("key-field").value.trim(), $("key-remember").checked);
      onKey();
    });
  }

  ask() {
    if (this.dialog.open || $("settings").open) return;
    $("key-note").textContent = key.get() ? "The server refused the key that this page has." : "Who runs it can give you one.";
    $("key-field").value = "";
    this.dialog.showModal();
  }
}

export class CodeDialog {
  constructor() {
    this.tabs = [$("tab-curl"), $("tab-python")];
    this.tabs.forEach((tab, index) => {
      tab.addEventListener("click", () => this.select(index));
      tab.addEventListener("keydown", (event) => {
        if (event.key === "ArrowRight" || event.key === "ArrowLeft") this.select(1 - index, true);
      });
    });
  }

  open(body) {
    this.body = body;
    this.select(0);
    $("code").showModal();
  }

  select(chosen, focus = false) {
    this.tabs.forEach((tab, index) => {
      tab.setAttribute("aria-selected", String(index === chosen));
      tab.tabIndex = index === chosen ? 0 : -1;
    });
    if (focus) this.tabs[chosen].focus();
    const view = new CodeView(chosen ? "python" : "bash");
    view.set(chosen ? asPython(this.body) : asCurl(this.body), true);
    $("code-text").setAttribute("aria-labelledby", this.tabs[chosen].id);
    $("code-text").replaceChildren(view.node);
  }
}
