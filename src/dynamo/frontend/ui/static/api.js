// The server: its models, its answers, and what can go wrong with it.

const ROOT = new URL("./", document.baseURI);
const KEY = "dynamo.key";

/** `kind` is "key" (none or a wrong one), "unreachable", "missing" (no such model), "busy", "long" (more than the model's
 * context) or "refused". */
export class ServerError extends Error {
  constructor(kind, message) {
    super(message);
    this.kind = kind;
  }
}

export const address = (path) => new URL(path, ROOT).href;

export const key = {
  get: () => sessionStorage.getItem(KEY) ?? localStorage.getItem(KEY) ?? "",
  remembered: () => localStorage.getItem(KEY) !== null,
  set(value, remember) {
    sessionStorage.removeItem(KEY);
    localStorage.removeItem(KEY);
    if (value) (remember ? localStorage : sessionStorage).setItem(KEY, value);
  },
};

export async function request(path, options = {}) {
  const headers = { ...options.headers };
  if (key.get()) headers.Authorization = `Bearer ${key.get()}`;
  if (options.body) headers["Content-Type"] = "application/json";
  let answer;
  try {
    answer = await fetch(address(path), { ...options, headers, cache: "no-store", credentials: "omit" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServerError("unreachable", "The server cannot be reached.");
  }
  if (!answer.ok) throw await refusal(answer);
  return answer;
}

async function refusal(answer) {
  let message = "";
  let code = null;
  try {
    const { error } = await answer.json();
    message = String(error?.message ?? error ?? "");
    code = error?.code;
  } catch {
    // A proxy's page, or nothing.
  }
  const kinds = { 401: "key", 403: "key", 404: "missing", 429: "busy", 502: "busy", 503: "busy", 504: "busy", 529: "busy" };
  return new ServerError(code === "context_length_exceeded" ? "long" : kinds[answer.status] ?? "refused", message || `The server answered ${answer.status}.`);
}

/** The served models, by name. */
export async function models() {
  const { data } = await (await request("v1/models")).json();
  return data.map((model) => ({ id: String(model.id), context: model.max_model_len }));
}

/** What a model can do: "completion", "vision", "tools", "thinking", "embedding". */
export async function capabilities(model) {
  const answer = await request("api/show", { method: "POST", body: JSON.stringify({ model }) });
  return new Set((await answer.json()).capabilities ?? []);
}

// Worker ids have 64 bits, which JavaScript's numbers do not.
function exact(_, value, context) {
  return typeof value === "number" && Number.isInteger(value) && !Number.isSafeInteger(value) && context ? context.source : value;
}

/** Stream an answer: `onChunk` gets each chunk. Rejects with a ServerError, or an AbortError once `signal` aborts. */
export async function streamChat(body, signal, onChunk) {
  const answer = await request("v1/chat/completions", { method: "POST", body: JSON.stringify(body), signal });
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let done = false;
  while (!done) {
    let part;
    try {
      part = await reader.read();
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new ServerError("unreachable", "The connection to the server broke.");
    }
    if (part.done) break;
    const lines = (rest + part.value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (!line.startsWith("data:")) continue;
      const data = line.slice(5).trim();
      if (data === "[DONE]") done = true;
      else if (data) receive(data, onChunk);
    }
  }
  if (!done) throw new ServerError("unreachable", "The answer broke off.");
}

function receive(data, onChunk) {
  let chunk;
  try {
    chunk = data.includes('"nvext"') ? JSON.parse(data, exact) : JSON.parse(data);
  } catch {
    throw new ServerError("refused", "The server sent something that is not JSON.");
  }
  if (chunk.error) throw new ServerError("busy", String(chunk.error.message ?? "The server failed."));
  onChunk(chunk);
}
