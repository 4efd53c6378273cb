// One answer while it is generated: chunks go into a node of the conversation.

import { ServerError, streamChat } from "./api.js";
import { withoutOldest } from "./conversation.js";

/** From how many pieces, and seconds, of an answer on its speed is known. */
const PIECES = 3;
const SHORTEST = 0.02;
const FACTS = ["worker_name", "timing", "routing"];

export class Answer {
  /** `context` is how many tokens the model takes, where that is known. */
  constructor(node, body, context, onChange) {
    this.node = node;
    this.body = body;
    this.context = context;
    this.onChange = onChange;
    this.control = new AbortController();
  }

  stop() {
    this.control.abort();
  }

  /** Until the node is complete. Returns the ServerError that ended it, or null. */
  async run() {
    const { node } = this;
    this.began = performance.now();
    this.first = null;
    let failure = null;
    const nvext = { ...this.body.nvext, extra_fields: [...new Set([...(this.body.nvext?.extra_fields ?? []), ...FACTS])] };
    const body = { ...this.body, nvext, stream: true, stream_options: { include_usage: true } };
    try {
      await this.send(body);
      node.state = "done";
    } catch (error) {
      if (error.name === "AbortError") node.state = "stopped";
      else {
        failure = error instanceof ServerError ? error : new ServerError("refused", String(error.message ?? error));
        node.state = "failed";
        node.error = failure.message;
      }
    }
    this.measure();
    this.onChange();
    return failure;
  }

  /** Without the oldest turns where the model's context is too short for all. */
  async send(body) {
    for (;;) {
      try {
        return await streamChat(body, this.control.signal, (chunk) => this.receive(chunk));
      } catch (error) {
        const messages = error.kind === "long" ? withoutOldest(body.messages) : null;
        if (!messages) throw error;
        this.node.dropped = (this.node.dropped ?? 0) + body.messages.length - messages.length;
        body = { ...body, messages };
      }
    }
  }

  receive(chunk) {
    const { node } = this;
    if (chunk.usage) this.usage = chunk.usage;
    if (chunk.nvext) this.nvext = chunk.nvext;
    const choice = chunk.choices?.[0];
    if (!choice) return;
    if (choice.finish_reason) node.finish = String(choice.finish_reason);
    const delta = choice.delta ?? {};
    const said = textOf(delta.content);
    const thought = textOf(delta.reasoning_content ?? delta.reasoning);
    if (said || thought || delta.tool_calls) {
      this.first ??= performance.now();
      this.last = performance.now();
      this.chunks = (this.chunks ?? 0) + 1;
      this.firstSize ??= sizeOf(said, thought, delta.tool_calls);
      this.size = (this.size ?? 0) + sizeOf(said, thought, delta.tool_calls);
    }
    node.text += said;
    node.reasoning += thought;
    for (const part of delta.tool_calls ?? []) {
      const at = Number.isInteger(part.index) ? part.index : node.calls.length;
      const call = (node.calls[at] ??= { id: "", name: "", arguments: "" });
      if (part.id) call.id = String(part.id);
      call.name += textOf(part.function?.name);
      call.arguments += textOf(part.function?.arguments);
    }
    node.calls = node.calls.filter(Boolean);
    this.onChange();
  }

  measure() {
    const { usage, nvext, node } = this;
    const stats = {};
    if (this.first !== null) stats.ttft = nvext?.timing?.ttft_ms ?? this.first - this.began;
    if (usage) {
      stats.prompt = usage.prompt_tokens;
      stats.tokens = usage.completion_tokens;
      stats.cached = usage.prompt_tokens_details?.cached_tokens ?? null;
      stats.thought = usage.completion_tokens_details?.reasoning_tokens ?? null;
    }
    // Only what came after the first piece, which may have many tokens, took the time that is known. The server's clock
    // is the better one: what arrives at once was not generated at once.
    const timing = nvext?.timing;
    const seconds = (timing ? timing.total_time_ms - timing.ttft_ms : this.last - this.first) / 1000;
    const count = (usage?.completion_tokens ?? this.chunks) * (1 - this.firstSize / this.size);
    if (this.chunks >= PIECES && seconds >= SHORTEST && count >= 1) stats.speed = count / seconds;
    if (this.context && usage) stats.full = (usage.prompt_tokens + usage.completion_tokens) / this.context;
    const worker = nvext?.worker_name;
    if (worker) {
      stats.worker = String(worker.decode ?? "");
      const prefill = String(worker.prefill ?? "");
      if (prefill && prefill !== stats.worker) stats.prefill = prefill;
    }
    if (nvext?.routing) stats.routing = nvext.routing;
    node.stats = stats;
  }
}

/** Characters of a piece. */
function sizeOf(said, thought, calls) {
  return (calls ?? []).reduce((sum, call) => sum + textOf(call.function?.arguments).length, said.length + thought.length);
}

/** Engines may send parts instead of a string. */
function textOf(value) {
  if (typeof value === "string") return value.includes("\r") ? value.replaceAll("\r\n", "\n") : value;
  if (Array.isArray(value)) return value.map((part) => textOf(part?.text)).join("");
  return "";
}
