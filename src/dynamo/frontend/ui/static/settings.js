// The dialog of settings. Those of a conversation are kept with it, and new conversations begin with the last ones.

import { key } from "./api.js";
import { DEFAULTS, parseExtra, parseTools } from "./conversation.js";
import { $ } from "./dom.js";

const LAST = "dynamo.settings";
const THEME = "dynamo.theme";

export function lastSettings() {
  try {
    return { ...DEFAULTS, ...JSON.parse(localStorage.getItem(LAST) ?? "{}") };
  } catch {
    return { ...DEFAULTS };
  }
}

export class SettingsDialog {
  /** `onChange` gets the settings of the conversation, `onKey` is called after the key was changed. */
  constructor({ onChange, onKey }) {
    this.dialog = $("settings");
    this.form = this.dialog.querySelector("form");
    this.form.addEventListener("input", () => {
      this.check();
      onChange(this.read());
    });
    this.field("theme").addEventListener("change", () => {
      const theme = this.field("theme").value;
      localStorage.setItem(THEME, theme);
      document.documentElement.dataset.theme = theme;
    });
    this.dialog.addEventListener("close", () => {
      const value = this.field("key").value.trim();
      if (value === key.get() && this.field("remember").checked === key.remembered()) return;
      key.set(value, this.field("remember").checked);
      onKey();
    });
  }

  field(name) {
    return this.form.elements.namedItem(name);
  }

  read() {
    const settings = Object.fromEntries(Object.keys(DEFAULTS).map((name) => [name, this.field(name).value]));
    localStorage.setItem(LAST, JSON.stringify(settings));
    return settings;
  }

  open(settings) {
    for (const name of Object.keys(DEFAULTS)) this.field(name).value = settings[name];
    this.field("key").value = key.get();
    this.field("remember").checked = key.remembered();
    this.field("theme").value = document.documentElement.dataset.theme ?? "";
    this.check();
    this.dialog.showModal();
  }

  check() {
    let problem = "";
    try {
      parseTools(this.field("tools").value);
      parseExtra(this.field("extra").value);
    } catch (error) {
      problem = error.message.slice(0, 300);
    }
    if ($("settings-problem").textContent !== problem) $("settings-problem").textContent = problem;
  }
}
