// The current request as something to paste elsewhere. The key is never in it.

import { address, key } from "./api.js";

const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;

export function asCurl(body) {
  const lines = [`curl ${quoted(address("v1/chat/completions"))}`, "-H 'Content-Type: application/json'"];
  if (key.get()) lines.push('-H "Authorization: Bearer $DYNAMO_API_KEY"');
  lines.push(`-d ${quoted(JSON.stringify(body, null, 2))}`);
  return lines.join(" \\\n  ");
}

const KNOWN = new Set(("model messages temperature top_p max_tokens seed frequency_penalty presence_penalty stop tools "
  + "tool_choice reasoning_effort response_format n logprobs top_logprobs logit_bias stream stream_options user").split(" "));

export function asPython(body) {
  const arguments_ = [];
  const extra = {};
  for (const [name, value] of Object.entries(body)) {
    if (KNOWN.has(name)) arguments_.push(`    ${name}=${python(value, 1)},`);
    else extra[name] = value;
  }
  if (Object.keys(extra).length) arguments_.push(`    extra_body=${python(extra, 1)},`);
  const secret = key.get() ? 'os.environ["DYNAMO_API_KEY"]' : '"none"';
  return [
    ...(key.get() ? ["import os", ""] : []),
    "from openai import OpenAI", "",
    `client = OpenAI(base_url=${python(address("v1"))}, api_key=${secret})`,
    "stream = client.chat.completions.create(", ...arguments_, "    stream=True,", ")",
    "for chunk in stream:", "    if chunk.choices:", '        print(chunk.choices[0].delta.content or "", end="", flush=True)',
  ].join("\n");
}

/** A JSON value as Python writes it. */
export function python(value, depth = 0) {
  if (value === null || value === undefined) return "None";
  if (value === true) return "True";
  if (value === false) return "False";
  // JSON's escapes are Python's too; a lone surrogate stays escaped.
  if (typeof value !== "object") return JSON.stringify(value);
  const inner = "    ".repeat(depth + 1);
  const [begin, end] = Array.isArray(value) ? "[]" : "{}";
  const parts = Array.isArray(value)
    ? value.map((item) => python(item, depth + 1))
    : Object.entries(value).map(([name, item]) => `${JSON.stringify(name)}: ${python(item, depth + 1)}`);
  const line = begin + parts.join(", ") + end;
  if (line.length < 90 && !line.includes("\n")) return line;
  return `${begin}\n${parts.map((part) => inner + part + ",\n").join("")}${"    ".repeat(depth)}${end}`;
}
