// Markdown to DOM nodes, while it arrives. Safe by construction: nothing here parses HTML, and all text becomes text
// nodes. Only the last block is rendered again when text is added; of a list or a table, only its last items.

import { copy, el, icon, visible } from "./dom.js";
import { formula, INLINE, inlineFormula, opening } from "./formulas.js";
import { highlight } from "./highlight.js";

const FENCE = /^( {0,3})(`{3,}|~{3,})[ \t]*([^`]*)$/;
const ITEM = /^( {0,3})([-*+]|\d{1,9}[.)])(?:([ \t]{1,4})|$)/;
const QUOTE = /^ {0,3}> ?/;
const HEADING = /^ {0,3}(#{1,6})(?:[ \t]|$)/;
const DELIMITERS = /^[ \t]*\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*$/;
const LONG = 8000;
/** Lines longer than this are text, whatever they begin with. */
const LINE = 4000;
const DEPTH = 10;
const COLUMNS = 64;
/** A longer list goes on in another one, so that its beginning is parsed once. */
const ITEMS = 40;
/** From here on the columns of a table keep their widths. */
const ROWS = 60;

const isBlank = (line) => !line.trim();
const isRule = (line) => line.length < LINE && /^([-*_])\1{2,}$/.test(line.replace(/[ \t]/g, ""));
const isDelimiters = (line) => line !== undefined && line.length < LINE && line.includes("-") && DELIMITERS.test(line);

function interrupts(line) {
  return isBlank(line) || FENCE.test(line.slice(0, LINE)) || HEADING.test(line.slice(0, 12)) || QUOTE.test(line)
    || ITEM.test(line.slice(0, 20)) || isRule(line) || opening(line.slice(0, LINE)) !== null;
}

/** The blocks of a text. `end` is where the next one begins. */
export function parse(text, depth = 0) {
  const lines = text.split("\n");
  const blocks = [];
  let at = 0;
  let offset = 0;
  const take = () => {
    offset += lines[at].length + 1;
    return lines[at++];
  };
  while (at < lines.length) {
    const line = lines[at];
    let match;
    let block;
    if (isBlank(line)) {
      take();
      continue;
    }
    if (depth > DEPTH) {
      blocks.push({ type: "paragraph", text: lines.slice(at).join("\n"), end: text.length });
      break;
    }
    const begin = offset;
    if (line.length < LINE && (match = FENCE.exec(line))) {
      take();
      const [, indent, ticks, info] = match;
      const close = (candidate) => {
        const trimmed = candidate.trim();
        return trimmed.length >= ticks.length && trimmed.length < LINE && trimmed === ticks[0].repeat(trimmed.length);
      };
      const body = [];
      let closed = false;
      while (at < lines.length && !closed) {
        const next = take();
        if (close(next)) closed = true;
        else body.push(indent && next.startsWith(indent) ? next.slice(indent.length) : next);
      }
      block = { type: "code", language: info.trim().split(/\s/)[0].slice(0, 40), text: body.join("\n"), closed };
    } else if (line.length < LINE && (block = formulaBlock(lines, at))) {
      for (let count = block.lines; count > 0; count--) take();
    } else if (line.length < LONG && (match = HEADING.exec(line))) {
      take();
      const title = line.trim().slice(match[1].length).trim();
      const cut = /#+$/.exec(title.slice(-LINE));
      const bare = cut && /(^|\s)$/.test(title.slice(0, -cut[0].length)) ? title.slice(0, -cut[0].length).trim() : title;
      block = { type: "heading", level: match[1].length, text: bare };
    } else if (isRule(line)) {
      take();
      block = { type: "rule" };
    } else if (QUOTE.test(line)) {
      const body = [];
      while (at < lines.length && (QUOTE.test(lines[at]) || !interrupts(lines[at]))) body.push(take().replace(QUOTE, ""));
      block = { type: "quote", text: body.join("\n") };
    } else if ((match = ITEM.exec(line))) {
      block = list(lines, () => at, take, match);
    } else if (line.includes("|") && line.length < LONG && isDelimiters(lines[at + 1])) {
      const header = cells(take());
      const aligns = cells(take()).map((cell) => (cell.endsWith(":") ? (cell.startsWith(":") ? "center" : "right") : ""));
      const rows = [];
      while (at < lines.length && lines[at].includes("|") && !isBlank(lines[at])) rows.push(take());
      block = { type: "table", header, aligns, rows };
    } else if (line.length > LONG) {
      // One endless line: in pieces, so that each is laid out once.
      let cut = line.lastIndexOf(" ", LONG);
      if (cut < LONG / 2) cut = LONG;
      if (/[\ud800-\udbff]/.test(line[cut - 1])) cut--;
      lines[at] = line.slice(cut);
      offset += cut;
      block = { type: "paragraph", text: line.slice(0, cut), cut: true };
    } else {
      const body = [take()];
      let size = line.length;
      while (at < lines.length && size + lines[at].length < LONG && !interrupts(lines[at])) {
        if (lines[at].includes("|") && isDelimiters(lines[at + 1])) break;
        size += lines[at].length;
        body.push(take());
      }
      block = { type: "paragraph", text: body.join("\n") };
    }
    block.end = Math.min(offset, text.length);
    block.raw = text.slice(begin, block.end);
    blocks.push(block);
  }
  return blocks;
}

/** A formula in lines of its own, or null. One that has no end yet is shown as it is written. */
function formulaBlock(lines, at) {
  const end = opening(lines[at]);
  if (end === null) return null;
  const first = lines[at].trim().slice(2);
  const body = [];
  for (let line = first, next = at + 1; ; line = lines[next++]) {
    const trimmed = line.trimEnd();
    if (trimmed.endsWith(end)) {
      return { type: "formula", text: [...body, trimmed.slice(0, -2)].join("\n"), lines: next - at, closed: true };
    }
    // Text after the end, or an empty line: not a formula in lines of its own.
    if (line.includes(end) || (body.length && isBlank(line) && next < lines.length)) return null;
    body.push(line);
    if (next >= lines.length) return { type: "formula", text: body.join("\n"), lines: next - at, closed: false };
  }
}

function list(lines, position, take, first) {
  const ordered = /\d/.test(first[2]);
  const items = [];
  let loose = false;
  let cut = false;
  let match = first;
  while (match) {
    const width = match[0].length;
    const body = [take().slice(width)];
    let blank = false;
    while (position() < lines.length) {
      const next = lines[position()];
      const indent = next.length - next.trimStart().length;
      if (isBlank(next)) blank = true;
      else if (indent >= Math.min(width, 4) || (indent >= 2 && !ordered)) {
        if (blank) loose = true;
        blank = false;
      } else if (blank || interrupts(next)) break;
      body.push(isBlank(next) ? "" : next.slice(Math.min(indent, width)));
      take();
    }
    items.push(body.join("\n").trimEnd());
    const next = lines[position()];
    match = next === undefined ? null : ITEM.exec(next);
    if (match && (/\d/.test(match[2]) !== ordered || isRule(next))) match = null;
    if (match && items.length === ITEMS) {
      cut = true;
      break;
    }
    if (match && blank) loose = true;
  }
  return { type: "list", ordered, start: ordered ? parseInt(first[2], 10) : 1, items, loose, cut };
}

function cells(row) {
  const inner = row.trim().replace(/^\|/, "").replace(/(^|[^\\])\|$/, "$1");
  return inner.split(/(?<!\\)\|/, COLUMNS).map((cell) => cell.trim().replaceAll("\\|", "|"));
}

// Inline -------------------------------------------------------------------------------------------------------------

const MARK = new RegExp(String.raw`(${INLINE})|` + /\\([!-/:-@[-`{-~])|(`+)|(\*\*\*|\*\*|\*|___|__|_|~~)|(!?)\[|<(https?:\/\/[^\s<>]+)>|(https?:\/\/[^\s<>"'`\])}]+)|( *\\?\n)/.source, "g");
const isWord = (character) => character !== undefined && /[\p{L}\p{N}]/u.test(character);
const isSpace = (character) => character === undefined || /\s/.test(character);

/** Append the inline content of `text`. While `open`, more of it may come: bold and code that have no end yet reach to it. */
function inline(parent, text, open = false, depth = 0) {
  const mark = new RegExp(MARK);
  const hopeless = new Set();
  let plain = "";
  let from = 0;
  const flush = () => {
    if (plain) parent.append(plain);
    plain = "";
  };
  for (let match; (match = mark.exec(text)); from = mark.lastIndex) {
    plain += text.slice(from, match.index);
    const after = mark.lastIndex;
    const [whole, math, escaped, ticks, emphasis, bang, angle, url, newline] = match;
    if (math) {
      flush();
      parent.append(inlineFormula(math));
    } else if (escaped) plain += escaped;
    else if (newline !== undefined) {
      flush();
      parent.append(el("br"));
    } else if (ticks) {
      let end = hopeless.has(ticks) ? -1 : codeEnd(text, after, ticks);
      if (end < 0) hopeless.add(ticks);
      if (end < 0 && open && ticks.length === 1 && text.length > after) end = text.length;
      if (end < 0) plain += ticks;
      else {
        flush();
        const inner = text.slice(after, end).replaceAll("\n", " ");
        parent.append(el("code", {}, /^ .*[^ ].* $/.test(inner.slice(0, 200)) ? inner.slice(1, -1) : inner));
        mark.lastIndex = Math.min(end + ticks.length, text.length);
      }
    } else if (emphasis) {
      let end = -1;
      if (depth < DEPTH && opens(text, match.index, emphasis) && !hopeless.has(emphasis)) {
        end = emphasisEnd(text, after, emphasis);
        if (end < 0 && open && emphasis === "**") end = text.length;
        if (end < 0) hopeless.add(emphasis);
      }
      if (end < 0) plain += emphasis;
      else {
        flush();
        const inner = el(emphasis === "~~" ? "del" : emphasis.length === 1 ? "em" : "strong");
        const target = emphasis.length === 3 ? inner.appendChild(el("em")) : inner;
        inline(target, text.slice(after, end), open && end === text.length, depth + 1);
        parent.append(inner);
        mark.lastIndex = Math.min(end + emphasis.length, text.length);
      }
    } else if (angle || url) {
      const trimmed = angle ?? url.replace(/[.,;:!?*_~]+$/, "");
      flush();
      parent.append(link(trimmed, visible(trimmed)));
      if (url) mark.lastIndex = after - (url.length - trimmed.length);
    } else {
      const found = depth < DEPTH && !hopeless.has("[") ? linkAt(text, after) : null;
      if (!found) {
        if (depth >= DEPTH || text.indexOf("](", after) < 0) hopeless.add("[");
        plain += whole;
      } else {
        flush();
        if (bang) parent.append(image(found.url, found.label));
        else {
          const anchor = link(found.url);
          inline(anchor, found.label, false, DEPTH - 1);
          parent.append(anchor);
        }
        mark.lastIndex = found.end;
      }
    }
  }
  plain += text.slice(from);
  flush();
}

function codeEnd(text, from, ticks) {
  for (let at = text.indexOf(ticks, from); at >= 0; ) {
    let end = at + ticks.length;
    if (text[end] !== "`") return at;
    while (text[end] === "`") end++;
    at = text.indexOf(ticks, end);
  }
  return -1;
}

function opens(text, at, mark) {
  return !isSpace(text[at + mark.length]) && (mark[0] !== "_" || !isWord(text[at - 1]));
}

function emphasisEnd(text, from, mark) {
  for (let at = text.indexOf(mark, from); at >= 0; at = text.indexOf(mark, at)) {
    let end = at;
    while (text[end] === mark[0]) end++;
    const run = end - at;
    const fits = run === mark.length || (run > mark.length && mark.length > 1) || (run === 3 && mark.length === 1);
    if (fits && at > from && !isSpace(text[at - 1]) && text[at - 1] !== "\\" && (mark[0] !== "_" || !isWord(text[end]))) {
      return end - mark.length;
    }
    at = end;
  }
  return -1;
}

function linkAt(text, from) {
  let level = 1;
  let at = from;
  for (; at < text.length && level; at++) {
    if (text[at] === "\\") at++;
    else if (text[at] === "[") level++;
    else if (text[at] === "]") level--;
  }
  if (level || text[at] !== "(") return null;
  const match = /^\(\s*<?([^\s<>()]*(?:\([^\s<>()]*\)[^\s<>()]*)*)>?(?:\s+["'(][^"')]*["')])?\s*\)/.exec(text.slice(at, at + 4000));
  return match && { label: text.slice(from, at - 1), url: match[1], end: at + match[0].length };
}

function link(url, text) {
  const anchor = el("a", {}, ...(text === undefined ? [] : [text]));
  // Everything else, javascript: above all, stays text.
  if (/^(https?:\/\/|mailto:)/i.test(url) && URL.canParse(url)) {
    anchor.href = url;
    anchor.target = "_blank";
    anchor.rel = "noopener noreferrer nofollow";
  } else anchor.title = visible(url).slice(0, 300);
  return anchor;
}

/** Pictures inside the answer are shown. Those elsewhere are links: loading them would tell others what was asked. */
function image(url, label) {
  const name = visible(label) || "picture";
  if (/^data:image\/(png|jpeg|gif|webp);base64,/i.test(url)) return el("img", { src: url, alt: name, loading: "lazy" });
  return link(url, `🖼 ${name}`);
}

// Blocks to nodes ----------------------------------------------------------------------------------------------------

function render(block, open, depth) {
  switch (block.type) {
    case "code": {
      const view = new CodeView(block.language);
      view.set(block.text, block.closed || !open);
      return view;
    }
    case "heading": {
      // The page has its own h1 and h2.
      const node = el(`h${Math.min(block.level + 2, 6)}`, { class: `h${block.level}`, dir: "auto" });
      inline(node, block.text, open);
      return { node };
    }
    case "rule":
      return { node: el("hr") };
    case "formula":
      return { node: el("p", {}, block.closed ? formula(block.text, block.raw.trim(), true) : el("code", {}, block.raw.trim())) };
    case "quote": {
      const node = el("blockquote");
      fill(node, block.text, open, depth + 1);
      return { node };
    }
    case "list":
      return new ItemsView(el(block.ordered ? "ol" : "ul", {
        class: block.cut ? "cut" : null, start: block.ordered && block.start !== 1 ? block.start : null }),
        (item, last) => listItem(item, block.loose, last, depth));
    case "table":
      return new TableView(block);
    default: {
      const node = el("p", { dir: "auto", class: block.cut ? "cut" : null });
      inline(node, block.text, open);
      return { node };
    }
  }
}

function fill(parent, text, open, depth) {
  const blocks = parse(text, depth);
  blocks.forEach((block, index) => {
    const last = open && index === blocks.length - 1;
    const view = render(block, last, depth);
    view.update?.(block, last);
    parent.append(view.node);
  });
}

function listItem(text, loose, open, depth) {
  const node = el("li", { dir: "auto" });
  const task = /^\[([ xX])\] /.exec(text);
  if (task) {
    const done = task[1] !== " ";
    node.className = "task";
    node.append(el("input", { type: "checkbox", disabled: true, checked: done, "aria-label": done ? "done" : "to do" }));
    text = text.slice(4);
  }
  const blocks = parse(text, depth + 1);
  blocks.forEach((block, index) => {
    const last = open && index === blocks.length - 1;
    if (block.type === "paragraph" && !loose) {
      if (index) node.append(el("br"));
      inline(node, block.text, last);
      return;
    }
    const view = render(block, last, depth + 1);
    view.update?.(block, last);
    node.append(view.node);
  });
  return node;
}

/** Items that stay as they are while later ones change. */
class ItemsView {
  constructor(node, make) {
    this.node = node;
    this.make = make;
    this.keys = [];
  }

  update(block, open) {
    const items = block.items ?? block.rows;
    const keys = items.map((item, index) => (open && index === items.length - 1 ? `${item}\0open` : item));
    let same = 0;
    while (same < keys.length && keys[same] === this.keys[same]) same++;
    while (this.node.children.length > same) this.node.lastElementChild.remove();
    for (let index = same; index < items.length; index++) {
      this.node.append(this.make(items[index], open && index === items.length - 1));
    }
    this.keys = keys;
  }
}

/** A table. Where it grows long it goes on in further ones with columns of the same widths: a browser measures and lays
 * out all rows of a table again for each new one. */
class TableView {
  constructor({ header, aligns }) {
    this.header = header;
    this.aligns = aligns;
    const head = el("thead", {}, el("tr", {}, ...header.map((text, index) => this.cell("th", text, index, false))));
    this.parts = [new ItemsView(el("tbody"), (row, last) => this.row(row, last))];
    this.node = el("div", { class: "table", tabindex: "0", role: "group", "aria-label": "Table" },
      el("table", {}, head, this.parts[0].node));
  }

  cell(tag, text, index, open) {
    const node = el(tag, { dir: "auto", class: this.aligns[index] || null, scope: tag === "th" ? "col" : null });
    inline(node, text, open);
    return node;
  }

  row(text, last) {
    const parts = cells(text);
    return el("tr", {}, ...this.header.map((_, index) =>
      this.cell("td", parts[index] ?? "", index, last && index === parts.length - 1)));
  }

  update({ rows }, open) {
    // A table that comes at once, or is short, is one.
    if (!this.widths && open && rows.length > ROWS) this.fix();
    if (!this.widths) return this.parts[0].update({ rows }, open);
    const count = Math.ceil(rows.length / ROWS);
    while (this.parts.length < count) this.addPart();
    for (let index = Math.max(0, count - 2); index < count; index++) {
      const part = rows.slice(index * ROWS, (index + 1) * ROWS);
      this.parts[index].update({ rows: part }, open && index === count - 1);
    }
  }

  fix() {
    const heads = [...this.node.querySelectorAll("th")];
    this.widths = heads.map((head) => head.getBoundingClientRect().width);
    heads.forEach((head, index) => { head.style.width = `${this.widths[index]}px`; });
    this.fixWidth(this.node.firstChild);
  }

  fixWidth(table) {
    table.style.width = `${this.widths.reduce((sum, width) => sum + width, 0)}px`;
    table.classList.add("fixed");
  }

  addPart() {
    const part = new ItemsView(el("tbody"), (row, last) => this.row(row, last));
    const columns = this.widths.map((width) => {
      const column = el("col");
      column.style.width = `${width}px`;
      return column;
    });
    const table = el("table", {}, el("colgroup", {}, ...columns), part.node);
    this.fixWidth(table);
    this.parts.push(part);
    this.node.append(table);
  }
}

const CHUNK = 6000;

/** A block of code that grows at its end: text goes into chunks, so that what is complete is not laid out again. */
export class CodeView {
  constructor(language) {
    this.language = language;
    this.text = "";
    this.code = el("code");
    const button = el("button", { type: "button", class: "text-button", on: { click: () => copy(this.text, button) } },
      icon("copy"), el("span", {}, "Copy"));
    this.node = el("div", { class: "code" },
      el("div", { class: "code-head" }, el("span", {}, visible(language) || "text"), button),
      el("pre", { tabindex: "0", role: "group", "aria-label": `Code ${visible(language)}`, dir: "ltr" }, this.code));
  }

  set(text, final) {
    if (final && this.isFinal && text === this.text) return;
    if (this.isFinal || !text.startsWith(this.text)) {
      this.code.replaceChildren();
      this.text = "";
    }
    this.append(text.slice(this.text.length));
    this.text = text;
    this.isFinal = final;
    if (final) highlight(this.code, this.text, this.language);
  }

  append(added) {
    while (added) {
      let last = this.code.lastChild;
      if (!last || last.firstChild.length >= CHUNK) {
        last = this.code.appendChild(el("span", { class: "chunk" }, document.createTextNode("")));
      }
      const room = Math.max(CHUNK - last.firstChild.length, 1);
      let cut = added.length;
      if (cut > room) {
        cut = added.indexOf("\n", room) + 1 || added.length;
        // A line without an end is cut anywhere.
        if (cut > room + CHUNK) cut = room;
      }
      last.firstChild.appendData(added.slice(0, cut));
      added = added.slice(cut);
    }
  }

  update(block, open) {
    this.set(block.text, block.closed || !open);
  }
}

/** A text that is shown as Markdown while it grows. */
export class MarkdownView {
  constructor() {
    this.node = el("div", { class: "markdown" });
    this.reset();
  }

  reset() {
    this.node.replaceChildren();
    this.text = "";
    /** Before here nothing changes any more. */
    this.settled = 0;
    /** What is shown of the blocks after that. */
    this.tails = [];
    this.final = false;
  }

  /** Show `text`; `final` says that it is complete. */
  set(text, final) {
    if (text.length < this.text.length || (this.final && text !== this.text)) this.reset();
    if (text.length === this.text.length && this.final === final) return;
    this.text = text;
    this.final = final;
    const blocks = parse(visible(text.slice(this.settled)));
    const tails = blocks.map((block, index) => this.show(block, index === blocks.length - 1 && !final, this.tails[index]));
    for (const tail of this.tails.slice(blocks.length)) tail.view.node.remove();
    // The last line may go on, and so change where the block before it ends; a table is known by its second line.
    const count = blocks.length - ((blocks.at(-1)?.raw?.split("\n", 3).length ?? 0) < 3 ? 2 : 1);
    if (count > 0) this.settled += blocks[count - 1].end;
    this.tails = tails.slice(Math.max(count, 0));
  }

  /** The view of a block that is not settled, in the place of the one that was there. */
  show(block, open, tail) {
    const kind = [block.type, block.language, block.level, block.start, block.ordered, block.loose, block.cut, block.header, block.aligns].join(" ");
    if (tail?.kind === kind && tail.raw === block.raw && tail.open === open) return tail;
    let view = tail?.kind === kind && tail.view.update ? tail.view : null;
    if (!view) {
      view = render(block, open, 0);
      if (tail) tail.view.node.replaceWith(view.node);
      else this.node.append(view.node);
    }
    view.update?.(block, open);
    return { kind, raw: block.raw, open, view };
  }
}
