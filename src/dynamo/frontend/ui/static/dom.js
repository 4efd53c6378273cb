// Building the page: every text that comes from outside becomes a text node, never markup.

const CONTROL = /[\u0000-\u0008\u000b-\u001f\u007f\u202a-\u202e\u2066-\u2069]/g;

/** The text with control characters and direction overrides made visible; its length stays. */
export function visible(text) {
  return text.replace(CONTROL, (character) => {
    const code = character.charCodeAt(0);
    return code < 32 ? String.fromCharCode(0x2400 + code) : code === 127 ? "\u2421" : "\ufffd";
  });
}

/** A short form for labels; names of models and tools may be of any length. */
export function brief(text, limit = 80) {
  const line = visible(String(text)).replace(/\s+/g, " ").trim();
  return line.length > limit ? line.slice(0, limit - 1) + "…" : line;
}

/** An element. `on` maps events to listeners; other attributes are set as they are, true as "", false and null not. */
export function el(tag, { on, ...attributes } = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== false && value != null) element.setAttribute(name, value === true ? "" : value);
  }
  for (const [name, listener] of Object.entries(on ?? {})) element.addEventListener(name, listener);
  element.append(...children.filter((child) => child != null && child !== false));
  return element;
}

const SVG = "http://www.w3.org/2000/svg";

/** A symbol of the page's sprite. */
export function icon(name) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("class", "icon");
  svg.setAttribute("aria-hidden", "true");
  const use = document.createElementNS(SVG, "use");
  use.setAttribute("href", `#i-${name}`);
  svg.append(use);
  return svg;
}

export function iconButton(name, label, onClick, attributes = {}) {
  return el("button", { type: "button", class: "icon-button", "aria-label": label, title: label, ...attributes,
    on: { click: onClick } }, icon(name));
}

export const $ = (id) => document.getElementById(id);

/** Make the children of `parent` these nodes; those already in place are not touched, so focus and selection stay. */
export function place(parent, nodes) {
  let here = parent.firstChild;
  for (const node of nodes) {
    if (node === here) here = here.nextSibling;
    else parent.insertBefore(node, here);
  }
  while (here) {
    const next = here.nextSibling;
    here.remove();
    here = next;
  }
}

/** Tell screen readers. */
export function announce(text) {
  $("announcer").textContent = text;
}

let toastTimer;

/** A short notice that goes away by itself. */
export function toast(text) {
  const box = $("toast");
  box.textContent = brief(text, 300);
  box.hidden = false;
  clearTimeout(toastTimer);
  toastTimer = setTimeout(() => { box.hidden = true; }, 4000);
}

export async function copy(text, button) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // Pages without TLS on another machine have no clipboard API.
    const area = el("textarea", { class: "off-screen", "aria-hidden": "true" });
    area.value = text;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    if (!done) return toast("This browser does not let the page copy");
  }
  announce("Copied");
  button?.classList.add("done");
  setTimeout(() => button?.classList.remove("done"), 1200);
}

/** Save a text as a file. */
export function download(name, text) {
  const url = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  el("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}
