// The stream of the fleet: a snapshot, then JSON merge patches. It connects again by itself.

import { request, ServerError } from "./api.js";

const FIRST_RETRY = 1_000;
const LONGEST_RETRY = 15_000;

/** Names come from outside: without a prototype, "__proto__" is a name like any other. */
const empty = () => Object.create(null);

/** Apply a merge patch (RFC 7396) to a document in place. */
export function merge(document, patch) {
  for (const [name, value] of Object.entries(patch)) {
    if (value === null) delete document[name];
    else if (typeof value === "object" && !Array.isArray(value)) {
      if (typeof document[name] !== "object" || Array.isArray(document[name])) document[name] = empty();
      merge(document[name], value);
    } else document[name] = value;
  }
  return document;
}

export class FleetStream {
  /** `onChange` gets the whole document after each event; `onState` gets "live", "key", "broken" or "refused", and why. */
  constructor({ onChange, onState }) {
    this.onChange = onChange;
    this.onState = onState;
    this.document = null;
    this.prefixes = false;
    this.delay = FIRST_RETRY;
    document.addEventListener("visibilitychange", () => this.look());
    addEventListener("online", () => this.look());
  }

  /** Connect now. A page in the background is not connected: the server does nothing for it. */
  look() {
    clearTimeout(this.timer);
    this.abort?.abort();
    this.abort = null;
    if (document.visibilityState === "visible") this.follow();
  }

  /** Whether the server is to look for cached prefixes too: it does so only for those who ask. */
  ask(prefixes) {
    if (prefixes === this.prefixes) return;
    this.prefixes = prefixes;
    this.look();
  }

  async follow() {
    const abort = this.abort = new AbortController();
    try {
      const answer = await request(this.prefixes ? "fleet/events?prefixes=true" : "fleet/events", { signal: abort.signal });
      await this.read(answer.body.pipeThrough(new TextDecoderStream()).getReader());
      throw new ServerError("unreachable", "The server ended the connection.");
    } catch (error) {
      if (abort.signal.aborted) return;
      if (error instanceof ServerError && ["key", "missing", "refused"].includes(error.kind)) {
        this.onState(error.kind === "key" ? "key" : "refused", error.message);
        return;
      }
      this.onState("broken", error instanceof ServerError ? error.message : "The connection to the server broke.");
      this.timer = setTimeout(() => this.look(), this.delay);
      this.delay = Math.min(this.delay * 2, LONGEST_RETRY);
    }
  }

  async read(reader) {
    let rest = "";
    let event = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      for (const line of lines) {
        if (line.startsWith("event: ")) event = line.slice(7);
        else if (line.startsWith("data: ")) this.receive(event, JSON.parse(line.slice(6)));
      }
    }
  }

  receive(event, data) {
    this.document = merge(event === "snapshot" ? empty() : this.document, data);
    if (event === "snapshot") {
      this.delay = FIRST_RETRY;
      this.onState("live", "");
    }
    this.onChange(this.document);
  }
}
