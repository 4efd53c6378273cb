// The chat page: joins its parts.

import { newConversation, pathTo, requestBody } from "./conversation.js";
import { CodeDialog, KeyDialog, question } from "./dialogs.js";
import { $, brief, download, el, toast, visible } from "./dom.js";
import { Pictures } from "./pictures.js";
import { ServerWatch } from "./server.js";
import { lastSettings, SettingsDialog } from "./settings.js";
import { Sidebar } from "./sidebar.js";
import * as store from "./store.js";
import { Thread } from "./thread.js";

const MODEL = "dynamo.model";
const DRAFT = "dynamo.draft";

let conversations = [];
let current = null;

const prompt = $("prompt");
const server = new ServerWatch({ onModels: showModels, onKey: () => keyDialog.ask() });
const keyDialog = new KeyDialog(() => server.look());
const codeDialog = new CodeDialog();
const pictures = new Pictures({ onChange: showState });
const settings = new SettingsDialog({
  onChange: (changed) => {
    current.settings = changed;
    if (isStarted(current)) save(current);
  },
  onKey: () => server.look(),
});
const thread = new Thread({
  save,
  changed: showState,
  contextOf: (model) => server.models.find((one) => one.id === model)?.context,
  failed: (error) => {
    if (error.kind === "key") keyDialog.ask();
    server.look();
  },
});
const sidebar = new Sidebar({
  create,
  open,
  rename: async (conversation) => {
    const title = await question("Rename this conversation", "Rename", conversation.title);
    if (title === null || !title.trim()) return;
    conversation.title = title.trim().slice(0, 200);
    save(conversation);
  },
  remove: async (conversation) => {
    if (!(await question(`Delete “${brief(conversation.title, 60)}”?`, "Delete"))) return;
    if (conversation === current) thread.stop();
    await store.remove(conversation.id);
    conversations = conversations.filter((one) => one !== conversation);
    if (conversation === current) create();
    else showList();
  },
  exportOne: (conversation) => download(`${fileName(conversation.title)}.json`, store.exported([conversation])),
});

const isStarted = (conversation) => Object.keys(conversation.nodes).length > 0;
const fileName = (title) => title.replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-|-$/g, "").slice(0, 60) || "conversation";

function save(conversation) {
  if (!conversations.includes(conversation)) conversations.unshift(conversation);
  conversations.sort((a, b) => b.updated - a.updated);
  store.save(conversation).catch((error) => toast(`Not saved: ${error.message}`));
  showList();
}

function showList() {
  sidebar.show(conversations, current?.id);
  document.title = current?.title ? `${brief(current.title, 60)} · Dynamo` : "Dynamo";
}

function open(conversation) {
  current = conversation;
  history.replaceState(null, "", isStarted(conversation) ? `#${conversation.id}` : location.pathname);
  thread.show(conversation);
  showList();
  showModels(server.models);
}

function create() {
  const models = current?.lanes.map((lane) => lane.model) ?? [localStorage.getItem(MODEL) ?? ""];
  const fresh = newConversation(models[0], lastSettings());
  if (models.length > 1) fresh.lanes.push({ model: models[1], leaf: null });
  open(fresh);
  sidebar.chosen();
  prompt.focus();
}

// Models -------------------------------------------------------------------------------------------------------------

function showModels(models) {
  if (!current) return;
  const names = models.map((model) => model.id);
  for (const lane of current.lanes) {
    // A started conversation keeps its model: it may come back.
    if (names.length && !names.includes(lane.model) && (!lane.model || !isStarted(current))) lane.model = names[0];
  }
  const boxes = [...$("models").querySelectorAll("select")];
  current.lanes.forEach((lane, index) => {
    const box = boxes[index] ?? $("models").appendChild(el("select", { class: "model" }));
    box.setAttribute("aria-label", index ? "Second model" : "Model");
    box.onchange = () => {
      lane.model = box.value;
      if (!index) localStorage.setItem(MODEL, box.value);
      if (isStarted(current)) save(current);
      showState();
    };
    const shown = names.includes(lane.model) || !lane.model ? names : [lane.model, ...names];
    const key = JSON.stringify([shown, names.includes(lane.model)]);
    if (box.dataset.key !== key) {
      box.dataset.key = key;
      box.replaceChildren(...(shown.length ? shown : [""]).map((name) => el("option", { value: name },
        !name ? "No model" : brief(name, 80) + (names.includes(name) ? "" : " (not served now)"))));
    }
    box.value = lane.model;
    box.title = visible(lane.model).slice(0, 300);
    box.disabled = !shown.length;
  });
  boxes.slice(current.lanes.length).forEach((box) => box.remove());
  const isTwo = current.lanes.length > 1;
  $("compare").setAttribute("aria-pressed", String(isTwo));
  $("compare").title = isTwo ? "Back to one model" : "Compare two models";
  showState();
}

$("compare").addEventListener("click", () => {
  if (thread.isBusy) return toast("Wait for the answer, or stop it.");
  const [first, second] = current.lanes;
  if (second) current.lanes = [first];
  else {
    const other = server.models.find((model) => model.id !== first.model)?.id ?? first.model;
    current.lanes = [first, { model: other, leaf: first.leaf }];
  }
  if (isStarted(current)) save(current);
  thread.show(current);
  showModels(server.models);
});

async function showState() {
  if (!current) return;
  const busy = thread.isBusy;
  const hasModel = current.lanes.every((lane) => lane.model);
  $("send").hidden = busy;
  $("stop").hidden = !busy;
  $("send").disabled = !hasModel || !(prompt.value.trim() || pictures.urls.length);
  const asked = current.lanes.map((lane) => lane.model);
  const sees = await Promise.all(asked.map((model) => server.seesPictures(model)));
  pictures.allow(sees.every(Boolean));
}

// The message field --------------------------------------------------------------------------------------------------

function send(event) {
  event?.preventDefault();
  if ($("send").disabled || thread.isBusy) return;
  const text = prompt.value.trim();
  prompt.value = "";
  sessionStorage.removeItem(DRAFT);
  grow();
  const isFirst = !isStarted(current);
  thread.ask(text, pictures.take());
  if (isFirst) history.replaceState(null, "", `#${current.id}`);
}

function grow() {
  if (CSS.supports("field-sizing", "content")) return;
  prompt.style.height = "auto";
  prompt.style.height = `${prompt.scrollHeight}px`;
}

$("composer").addEventListener("submit", send);
$("composer").addEventListener("click", (event) => event.target.closest("button") ?? prompt.focus());
$("stop").addEventListener("click", () => {
  thread.stop();
  prompt.focus();
});
prompt.addEventListener("input", () => {
  sessionStorage.setItem(DRAFT, prompt.value);
  grow();
  showState();
});
prompt.addEventListener("keydown", (event) => {
  if (event.isComposing) return;
  if (event.key === "Enter" && !event.shiftKey) send(event);
  if (event.key === "ArrowUp" && !prompt.value) {
    event.preventDefault();
    [...document.querySelectorAll(".message.user [aria-label=Edit]")].at(-1)?.click();
  }
});
addEventListener("keydown", (event) => {
  const isTyping = /^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement?.tagName ?? "");
  const inDialog = document.querySelector("dialog[open]");
  if (event.key === "Escape" && !inDialog) {
    if (thread.isBusy) thread.stop();
    else if (!$("scrim").hidden) sidebar.toggle(false);
  } else if (event.key === "/" && !isTyping && !inDialog) {
    event.preventDefault();
    prompt.focus();
  } else if (event.altKey && event.code === "KeyN" && !inDialog) {
    event.preventDefault();
    create();
  } else if (event.altKey && event.code === "KeyS" && !inDialog) {
    event.preventDefault();
    sidebar.toggle();
  }
});

// Dialogs ------------------------------------------------------------------------------------------------------------

$("show-settings").addEventListener("click", () => settings.open(current.settings));
$("show-code").addEventListener("click", () => {
  const [lane] = current.lanes;
  // The request as it would be sent now: with the draft, or the last one again.
  const last = pathTo(current, lane.leaf).findLast((node) => node.role !== "assistant");
  try {
    const body = requestBody(current, lane.model, prompt.value.trim() ? lane.leaf : last?.id);
    if (prompt.value.trim() || !body.messages.length) body.messages.push({ role: "user", content: prompt.value.trim() || "Hello" });
    codeDialog.open(body);
  } catch (error) {
    toast(error.message);
  }
});
$("export").addEventListener("click", () => download("conversations.json", store.exported(conversations)));
$("import").addEventListener("click", () => $("import-file").click());
$("import-file").addEventListener("change", async () => {
  const [file] = $("import-file").files;
  $("import-file").value = "";
  if (!file) return;
  try {
    const found = store.imported(await file.text());
    await Promise.all(found.map(store.save));
    conversations = [...conversations, ...found].sort((a, b) => b.updated - a.updated);
    showList();
    toast(found.length === 1 ? "1 conversation imported" : `${found.length} conversations imported`);
  } catch (error) {
    toast(error.message);
  }
});
$("delete-all").addEventListener("click", async () => {
  if (!(await question(`Delete all ${conversations.length} conversations?`, "Delete all"))) return;
  thread.stop();
  await store.clear();
  conversations = [];
  create();
});
addEventListener("pagehide", () => {
  if (current && thread.isBusy) store.save(current);
});

await store.open();
conversations = await store.all();
prompt.value = sessionStorage.getItem(DRAFT) ?? "";
grow();
const wanted = conversations.find((one) => one.id === location.hash.slice(1));
if (wanted) open(wanted);
else create();
document.body.dataset.ready = "";
await server.look();
