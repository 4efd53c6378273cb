// Formulas as MathML, by a library that is loaded with the first one. Until then, and where it does not understand a
// formula, its source is shown.

import { el, visible } from "./dom.js";

/** Longer ones stay as they are written: laying them out would hold the page. */
const LIMIT = 4000;
const OPTIONS = { throwOnError: true, strict: false, trust: false, maxSize: [40, 40], maxExpand: 200 };

let library = null;
let loading = null;

/** Where formulas begin and end. A dollar is one where no space follows it, and ends where none precedes it and no
 * digit follows; `$5 and $10` are prices, and so is a number before words. */
export const INLINE = String.raw`\\\((?:[^\\\n]|\\[^)\n]|\n(?!\n)){1,1500}?\\\)|\\\[(?:[^\\\n]|\\[^\]\n]|\n(?!\n)){1,1500}?\\\]`
  + String.raw`|\$\$(?:[^$\n]|\\\$|\n(?!\n)){1,1500}?\$\$(?!\$)|(?<![\\$\w])\$(?![\s$]|\d[^$\n]*\s[A-Za-z]{2})(?:[^$\\\n]|\\[^\n]){1,1500}?(?<!\s)\$(?![\w$])`;

/** A line that begins a formula of its own, with what ends it. */
export function opening(line) {
  const trimmed = line.trimStart();
  if (line.length - trimmed.length > 3) return null;
  if (trimmed.startsWith("$$")) return "$$";
  return trimmed.startsWith("\\[") ? "\\]" : null;
}

/** The node of an inline formula with its marks. */
export function inlineFormula(source) {
  const size = source.startsWith("\\") || source.startsWith("$$") ? 2 : 1;
  return formula(source.slice(size, -size), source, source.startsWith("\\[") || source.startsWith("$$"));
}

/** `tex` as a formula; `source` is what was written. */
export function formula(tex, source, display) {
  const node = el("span", { class: display ? "formula display" : "formula", dir: "ltr" }, el("code", {}, source));
  if (display) node.tabIndex = 0;
  if (tex.length > LIMIT || !tex.trim()) return node;
  if (library) render(node, tex, display);
  else void load().then(() => render(node, tex, display), () => {});
  return node;
}

function load() {
  loading ??= import("./temml.js").then((module) => { library = module.default; });
  // A server that was away may be back for the next formula.
  loading.catch(() => { loading = null; });
  return loading;
}

function render(node, tex, display) {
  const made = el("span");
  try {
    library.render(tex, made, { ...OPTIONS, displayMode: display });
  } catch (error) {
    node.title = visible(String(error.message ?? error)).slice(0, 300);
    return;
  }
  made.querySelector("math")?.setAttribute("aria-label", tex.trim());
  node.replaceChildren(...made.childNodes);
}
