// A conversation: a tree of messages. A lane is a model and a way through the tree, from the first message to a leaf;
// two models side by side are two lanes.

export const DEFAULTS = {
  system: "", temperature: "", top_p: "", top_k: "", max_tokens: "", seed: "", frequency_penalty: "", presence_penalty: "",
  stop: "", tools: "", tool_choice: "auto", reasoning_effort: "", extra: "",
};

const NUMBERS = ["temperature", "top_p", "top_k", "max_tokens", "seed", "frequency_penalty", "presence_penalty"];

export function newConversation(model, settings) {
  const now = Date.now();
  return {
    id: newId(), title: "", created: now, updated: now, nodes: {}, lanes: [{ model, leaf: null }],
    settings: { ...DEFAULTS, ...settings },
  };
}

/** Also where the page has no TLS, and so no crypto.randomUUID. */
export function newId() {
  return Array.from(crypto.getRandomValues(new Uint8Array(12)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

export function addNode(conversation, parent, fields) {
  const node = { id: newId(), parent, created: Date.now(), ...fields };
  conversation.nodes[node.id] = node;
  if (!conversation.title && node.role === "user") conversation.title = titleOf(node.text);
  conversation.updated = Date.now();
  return node;
}

function titleOf(text) {
  const line = text.replace(/\s+/g, " ").trim();
  return line.length > 60 ? line.slice(0, 59) + "…" : line || "Picture";
}

/** The nodes from the first message to `leaf`. */
export function pathTo(conversation, leaf) {
  const path = [];
  const seen = new Set();
  for (let node = conversation.nodes[leaf]; node && !seen.has(node.id); node = conversation.nodes[node.parent]) {
    seen.add(node.id);
    path.push(node);
  }
  return path.reverse();
}

export function siblings(conversation, node) {
  return Object.values(conversation.nodes).filter((other) => other.parent === node.parent && other.role === node.role);
}

/** The newest leaf below a node. */
export function leafBelow(conversation, id) {
  const last = new Map();
  for (const node of Object.values(conversation.nodes)) last.set(node.parent, node.id);
  const seen = new Set();
  while (last.has(id) && !seen.has(id)) {
    seen.add(id);
    id = last.get(id);
  }
  return id;
}

/** The calls of an answer that have no result on this path. */
export function openCalls(path, node) {
  const answered = new Set(path.filter((other) => other.role === "tool").map((other) => other.call));
  return (node.calls ?? []).filter((call) => !answered.has(call.id));
}

function messages(conversation, leaf) {
  const path = pathTo(conversation, leaf);
  const sent = [];
  if (conversation.settings.system.trim()) sent.push({ role: "system", content: conversation.settings.system });
  path.forEach((node, index) => {
    if (node.role === "tool") sent.push({ role: "tool", tool_call_id: node.call, content: node.text });
    else if (node.role === "user") sent.push({ role: "user", content: userContent(node) });
    else if (node.text || node.calls?.length) {
      const message = { role: "assistant", content: node.text || null };
      if (node.calls?.length) {
        message.tool_calls = node.calls.map(({ id, name, arguments: given }) => (
          { id, type: "function", function: { name, arguments: given } }));
      }
      sent.push(message);
      // The model expects a result of each call; a question asked instead leaves some without.
      if (index < path.length - 1) {
        for (const call of openCalls(path, node)) sent.push({ role: "tool", tool_call_id: call.id, content: "(no result)" });
      }
    }
  });
  return sent;
}

/** The messages without their oldest turns, a quarter of them and at least one; null where only the last one is left. */
export function withoutOldest(messages) {
  const begins = messages.flatMap(({ role }, index) => (role === "user" ? [index] : []));
  if (begins.length < 2) return null;
  const from = begins[Math.max(1, Math.floor(begins.length / 4))];
  return messages.filter(({ role }, index) => role === "system" || index >= from);
}

function userContent(node) {
  if (!node.images?.length) return node.text;
  const parts = node.images.map((url) => ({ type: "image_url", image_url: { url } }));
  return node.text ? [{ type: "text", text: node.text }, ...parts] : parts;
}

/** The request that continues a lane. Throws a SyntaxError for tools or fields that are not JSON. */
export function requestBody(conversation, model, leaf) {
  const { settings } = conversation;
  const body = { model, messages: messages(conversation, leaf) };
  for (const name of NUMBERS) {
    if (String(settings[name]).trim() !== "" && Number.isFinite(Number(settings[name]))) body[name] = Number(settings[name]);
  }
  const stop = settings.stop.split("\n").filter((line) => line);
  if (stop.length) body.stop = stop;
  if (settings.reasoning_effort) body.reasoning_effort = settings.reasoning_effort;
  const tools = parseTools(settings.tools);
  if (tools.length) {
    body.tools = tools;
    if (settings.tool_choice !== "auto") body.tool_choice = settings.tool_choice;
  }
  return { ...body, ...parseExtra(settings.extra) };
}

/** The tools of the settings: a list of OpenAI's tools, or of bare functions. */
export function parseTools(text) {
  if (!text.trim()) return [];
  const parsed = parseJson(text, "Tools");
  return (Array.isArray(parsed) ? parsed : [parsed]).map((tool) => {
    const whole = tool?.function ? { type: "function", ...tool } : { type: "function", function: tool };
    if (typeof whole.function?.name !== "string") throw new SyntaxError("Tools: each needs a name");
    return whole;
  });
}

export function parseExtra(text) {
  if (!text.trim()) return {};
  const parsed = parseJson(text, "More fields");
  if (typeof parsed !== "object" || !parsed || Array.isArray(parsed)) throw new SyntaxError("More fields: not a JSON object");
  return parsed;
}

function parseJson(text, what) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new SyntaxError(`${what}: ${error.message}`);
  }
}
