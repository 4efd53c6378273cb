// Colours for code: comments, strings, numbers and keywords, which is what most languages share.

import { el } from "./dom.js";

const LIMIT = 40_000;
const HASH = /^(py|python|sh|bash|shell|zsh|console|yaml|yml|toml|ini|rb|ruby|r|perl|make|makefile|dockerfile|elixir)$/;
const DASH = /^(sql|lua|haskell|hs|ada)$/;
const PLAIN = /^(|text|txt|plain|plaintext|output|log|markdown|md|diff)$/;
const MARKUP = /^(html|xml|svg|vue)$/;
const WORDS = new Set(
  ("abstract and as assert async await bool boolean break case catch char class const constexpr continue crate def default "
  + "defer del do double elif else end enum except export extends extern false finally float fn for from func function go "
  + "goto if impl implements import in include instanceof int interface is lambda let local long loop match mod module mut "
  + "namespace new nil none None not null nullptr of operator or override package pass private protected pub public raise "
  + "return self short sizeof static string struct super switch template then this throw throws trait true True False try "
  + "type typedef typeof union unsafe unsigned use using var virtual void volatile when where while with yield "
  + "select insert update delete from where join left right inner outer on group by order limit values into create table "
  + "echo export fi done esac").split(" "),
);

const STRING = String.raw`"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'`;
const NUMBER = String.raw`\b0[xXbBoO][\da-fA-F_]+\b|\b\d[\d_]*(?:\.\d+)?(?:[eE][+-]?\d+)?\b`;
const NAME = String.raw`[A-Za-z_$][\w$]*`;

function pattern(language) {
  const strings = `"""[\\s\\S]*?"""|'''[\\s\\S]*?'''|\`(?:\\\\.|[^\`\\\\])*\`|${STRING}`;
  const comment = HASH.test(language) ? "#[^\\n]*" : DASH.test(language) ? "--[^\\n]*" : "\\/\\/[^\\n]*|\\/\\*[\\s\\S]*?\\*\\/";
  return new RegExp(`(${comment})|(${strings})|(${NUMBER})|(${NAME})(\\s*\\()?`, "g");
}

/** Replace the content of `code` by coloured spans; text in no known language, and long text, stays as it is. */
export function highlight(code, text, language) {
  const name = language.toLowerCase();
  if (PLAIN.test(name) || text.length > LIMIT) return;
  const nodes = [];
  let from = 0;
  const add = (kind, begin, end) => {
    if (begin > from) nodes.push(text.slice(from, begin));
    nodes.push(el("span", { class: kind }, text.slice(begin, end)));
    from = end;
  };
  if (MARKUP.test(name)) {
    for (const match of text.matchAll(/<!--[\s\S]*?-->|<\/?[\w:-]+|"[^"\n]*"/g)) {
      const kind = match[0].startsWith("<!--") ? "t-comment" : match[0][0] === "<" ? "t-keyword" : "t-string";
      add(kind, match.index, match.index + match[0].length);
    }
  } else {
    for (const match of text.matchAll(pattern(name))) {
      const [whole, comment, string, number, word, call] = match;
      const end = match.index + (word ? word.length : whole.length);
      if (comment) add("t-comment", match.index, end);
      else if (string) add("t-string", match.index, end);
      else if (number) add("t-number", match.index, end);
      else if (WORDS.has(word)) add("t-keyword", match.index, end);
      else if (call) add("t-call", match.index, end);
    }
  }
  nodes.push(text.slice(from));
  code.replaceChildren(...nodes);
}
