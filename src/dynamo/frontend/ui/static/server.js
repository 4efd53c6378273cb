// Whether the server is there, and which models it serves: asked at the start, after each failure, and every while.

import { capabilities, models, ServerError } from "./api.js";
import { $, el, icon } from "./dom.js";

const NONE = "No model is served yet; this page shows it as soon as a worker joins, for example by "
  + "“dynamo-run in=dyn://dynamo.backend.generate tiny” on this machine.";
const CALM = 15_000;
const FIRST_RETRY = 1_000;

export class ServerWatch {
  /** `onModels` gets the models whenever they changed, `onKey` is called when a key is missing or wrong. */
  constructor({ onModels, onKey }) {
    this.onModels = onModels;
    this.onKey = onKey;
    this.models = [];
    this.known = new Map();
    this.isThere = null;
    this.delay = FIRST_RETRY;
    document.addEventListener("visibilitychange", () => document.visibilityState === "visible" && this.look());
    addEventListener("online", () => this.look());
  }

  /** Ask now; from then on again and again. */
  async look() {
    clearTimeout(this.timer);
    this.asking ??= this.ask().finally(() => { this.asking = null; });
    await this.asking;
    clearTimeout(this.timer);
    // A page in the background asks again when it is seen.
    if (document.visibilityState === "visible") this.timer = setTimeout(() => this.look(), this.delay);
  }

  async ask() {
    try {
      const found = await this.chatting(await models());
      const came = this.isThere === false;
      this.isThere = true;
      this.delay = CALM;
      if (JSON.stringify(found) !== JSON.stringify(this.models) || came) this.models = found;
      this.banner(found.length ? "" : NONE);
      if (!found.length) this.delay = 2 * FIRST_RETRY;
      this.onModels(found);
    } catch (error) {
      if (!(error instanceof ServerError)) throw error;
      if (error.kind === "key") {
        this.delay = CALM;
        this.banner("This server asks for a key.", ["Enter a key", () => this.onKey(error)]);
        this.onKey(error);
      } else {
        this.delay = this.isThere === false ? Math.min(this.delay * 2, CALM) : FIRST_RETRY;
        this.isThere = false;
        this.banner(`${error.message} Trying again…`, ["Try now", () => this.look()]);
      }
    }
  }

  banner(text, action) {
    const box = $("banner");
    if (box.textContent !== text + (action?.[0] ?? "")) {
      box.replaceChildren(icon("warning"), el("span", {}, text));
      if (action) box.append(el("button", { type: "button", class: "button", on: { click: action[1] } }, action[0]));
    }
    box.hidden = !text;
  }

  /** Those of the models that chat: embedding models, for example, do not. */
  async chatting(found) {
    // Whoever leaves may come back as another model.
    for (const id of this.known.keys()) if (!found.some((model) => model.id === id)) this.known.delete(id);
    const chats = await Promise.all(found.map(async ({ id }) => {
      try {
        return (await this.capabilities(id)).has("completion");
      } catch (error) {
        if (!(error instanceof ServerError)) throw error;
        return true; // a server without that route, or a model that has just left
      }
    }));
    return found.filter((_, index) => chats[index]);
  }

  async capabilities(model) {
    if (!this.known.has(model)) this.known.set(model, await capabilities(model));
    return this.known.get(model);
  }

  /** Whether the model takes pictures. */
  async seesPictures(model) {
    if (!this.models.some((one) => one.id === model)) return false;
    try {
      return (await this.capabilities(model)).has("vision");
    } catch {
      return false;
    }
  }
}
