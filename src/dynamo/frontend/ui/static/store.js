// Conversations in this browser (IndexedDB), and their export and import. Where the browser gives no database, they
// last as long as the page.

import { DEFAULTS, newId } from "./conversation.js";

const FORMAT = "dynamo-conversations";
let database = null;
const memory = new Map();

export async function open() {
  database = await new Promise((resolve) => {
    let asked;
    try {
      asked = indexedDB.open("dynamo", 1);
    } catch {
      return resolve(null);
    }
    asked.onupgradeneeded = () => asked.result.createObjectStore("conversations", { keyPath: "id" });
    asked.onsuccess = () => resolve(asked.result);
    asked.onerror = () => resolve(null);
    asked.onblocked = () => resolve(null);
  });
}

function within(mode, act) {
  return new Promise((resolve, reject) => {
    const transaction = database.transaction("conversations", mode);
    const asked = act(transaction.objectStore("conversations"));
    transaction.oncomplete = () => resolve(asked.result);
    transaction.onerror = transaction.onabort = () => reject(transaction.error ?? new Error("The browser refused to save"));
  });
}

export async function all() {
  const found = database ? await within("readonly", (store) => store.getAll()) : [...memory.values()];
  return found.map(checked).filter(Boolean).sort((a, b) => b.updated - a.updated);
}

export async function save(conversation) {
  if (database) await within("readwrite", (store) => store.put(conversation));
  else memory.set(conversation.id, structuredClone(conversation));
}

export async function remove(id) {
  if (database) await within("readwrite", (store) => store.delete(id));
  else memory.delete(id);
}

export async function clear() {
  if (database) await within("readwrite", (store) => store.clear());
  memory.clear();
}

export function exported(conversations) {
  return JSON.stringify({ format: FORMAT, version: 1, conversations }, null, 1);
}

/** The conversations of an exported file, under new ids. Throws an Error that says what is wrong with the file. */
export function imported(text) {
  let file;
  try {
    file = JSON.parse(text);
  } catch {
    throw new Error("This file is not JSON.");
  }
  if (file?.format !== FORMAT || !Array.isArray(file.conversations)) throw new Error("This file holds no conversations of this page.");
  const found = file.conversations.map(checked).filter(Boolean);
  if (!found.length && file.conversations.length) throw new Error("The conversations of this file are damaged.");
  return found.map((conversation) => ({ ...conversation, id: newId() }));
}

const isText = (value) => typeof value === "string";
const text = (value) => (isText(value) ? value : "");
const number = (value) => (Number.isFinite(value) ? value : Date.now());

/** The conversation with all that the page relies on, or null. Files come from anywhere. */
function checked(given) {
  if (typeof given !== "object" || !given || !isText(given.id) || typeof given.nodes !== "object" || !given.nodes) return null;
  const nodes = {};
  for (const node of Object.values(given.nodes)) {
    if (!isText(node?.id) || !["user", "assistant", "tool"].includes(node.role)) continue;
    nodes[node.id] = {
      ...node, text: text(node.text), parent: isText(node.parent) ? node.parent : null, created: number(node.created),
      images: list(node.images).filter((url) => isText(url) && url.startsWith("data:image/")),
      reasoning: text(node.reasoning), error: text(node.error),
      calls: list(node.calls).filter((call) => isText(call?.id) && isText(call.name) && isText(call.arguments)),
      stats: typeof node.stats === "object" ? node.stats : null,
      // What ran when the page was closed runs no more.
      state: node.state === "running" ? "stopped" : node.state,
    };
  }
  const lanes = list(given.lanes).slice(0, 2).map((lane) => ({ model: text(lane?.model), leaf: nodes[lane?.leaf] ? lane.leaf : null }));
  const settings = { ...DEFAULTS };
  for (const name of Object.keys(DEFAULTS)) if (isText(given.settings?.[name])) settings[name] = given.settings[name];
  return {
    id: given.id, title: text(given.title), created: number(given.created), updated: number(given.updated), nodes, settings,
    lanes: lanes.length ? lanes : [{ model: "", leaf: null }],
  };
}

const list = (value) => (Array.isArray(value) ? value : []);
