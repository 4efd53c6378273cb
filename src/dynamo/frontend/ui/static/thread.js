// The lanes of a conversation on the page: one thread of messages per model.

import { Answer } from "./answer.js";
import { addNode, leafBelow, pathTo, requestBody, siblings } from "./conversation.js";
import { $, announce, brief, el, place, toast } from "./dom.js";
import { messageView } from "./message.js";

/** Save at most this often while an answer arrives. */
const SAVE_EVERY = 2000;

export class Thread {
  /** `save` keeps a conversation, `failed` gets the ServerErrors, `changed` is called when a lane begins or ends,
   * `contextOf` says how many tokens a model takes. */
  constructor({ save, failed, changed, contextOf }) {
    this.contextOf = contextOf;
    this.save = save;
    this.failed = failed;
    this.changed = changed;
    this.conversation = null;
    this.lanes = [];
    this.running = new Map();
    this.follows = true;
    this.scroller = $("scroller");
    this.scroller.addEventListener("scroll", () => this.scrolled(), { passive: true });
    // Only the reader's own movement upwards ends the following; layout changes scroll too.
    this.scroller.addEventListener("wheel", (event) => event.deltaY < 0 && this.unfollow(), { passive: true });
    this.scroller.addEventListener("touchmove", () => this.scrolled(), { passive: true });
    $("to-end").addEventListener("click", () => this.toEnd());
  }

  get isBusy() {
    return [...this.running.values()].some((answer) => answer.conversation === this.conversation);
  }

  show(conversation) {
    this.conversation = conversation;
    this.views = new Map();
    this.lanes = conversation.lanes.map(() => el("div", { class: "lane" }));
    $("lanes").replaceChildren(...this.lanes);
    $("lanes").classList.toggle("two", this.lanes.length > 1);
    this.render();
    this.toEnd();
  }

  render() {
    const { conversation } = this;
    $("welcome").hidden = conversation.lanes.some((lane) => lane.leaf);
    const paths = conversation.lanes.map((lane) => pathTo(conversation, lane.leaf));
    const busy = this.isBusy;
    paths.forEach((path, index) => {
      // What the other lane shows is no version of what this one shows.
      const beside = new Set(paths[1 - index]);
      place(this.lanes[index], path.map((node) => {
        const versions = siblings(conversation, node).filter((other) => other === node || !beside.has(other));
        const view = this.viewOf(node, index);
        view.update(node, { versions, path, busy });
        return view.node;
      }));
    });
    this.follow();
  }

  viewOf(node, index) {
    const key = `${index} ${node.id}`;
    if (!this.views.has(key)) {
      const lane = this.conversation.lanes[index];
      this.views.set(key, messageView(node, {
        branch: (id) => {
          lane.leaf = leafBelow(this.conversation, id);
          this.keep();
        },
        edit: (old, text) => {
          lane.leaf = addNode(this.conversation, old.parent, { role: "user", text, images: old.images }).id;
          this.answer(lane);
        },
        retry: (old) => {
          lane.leaf = old.parent;
          this.answer(lane);
        },
        results: (asked, results) => {
          for (const { call, text } of results) {
            lane.leaf = addNode(this.conversation, lane.leaf, { role: "tool", call: call.id, name: call.name, text }).id;
          }
          this.answer(lane);
        },
      }));
    }
    return this.views.get(key);
  }

  keep() {
    this.save(this.conversation);
    this.render();
  }

  /** Ask all lanes. */
  ask(text, images) {
    this.follows = true;
    const { lanes } = this.conversation;
    const leaves = new Map();
    for (const { leaf } of lanes) {
      if (!leaves.has(leaf)) leaves.set(leaf, addNode(this.conversation, leaf, { role: "user", text, images }).id);
    }
    for (const lane of lanes) lane.leaf = leaves.get(lane.leaf);
    for (const lane of this.conversation.lanes) this.answer(lane);
  }

  /** Have the lane's model answer what the lane ends with. */
  async answer(lane) {
    const { conversation } = this;
    let body;
    try {
      body = requestBody(conversation, lane.model, lane.leaf);
    } catch (error) {
      this.keep();
      return toast(error.message);
    }
    const node = addNode(conversation, lane.leaf, {
      role: "assistant", model: lane.model, text: "", reasoning: "", calls: [], state: "running", error: "", stats: null });
    lane.leaf = node.id;
    const answer = new Answer(node, body, this.contextOf(lane.model), () => this.grew(node));
    answer.conversation = conversation;
    answer.saved = performance.now();
    this.running.set(node.id, answer);
    this.follows = true;
    this.keep();
    this.changed();
    announce(`${brief(lane.model, 40)} is answering`);
    const failure = await answer.run();
    this.running.delete(node.id);
    this.save(conversation);
    if (this.conversation === conversation) this.render();
    this.changed();
    announce(failure ? `The answer failed: ${brief(failure.message, 200)}` : node.calls.length ? "The model calls a tool" : "The answer is complete");
    if (failure) this.failed(failure);
  }

  stop() {
    for (const answer of this.running.values()) if (answer.conversation === this.conversation) answer.stop();
  }

  /** New text is shown once per frame, however many chunks came. */
  grew(node) {
    this.grown ??= new Set();
    this.grown.add(node);
    this.frame ??= requestAnimationFrame(() => {
      this.frame = null;
      for (const each of this.grown) {
        this.conversation.lanes.forEach((_, index) => this.views.get(`${index} ${each.id}`)?.grow(each));
        const answer = this.running.get(each.id);
        if (answer && performance.now() - answer.saved > SAVE_EVERY) {
          answer.saved = performance.now();
          this.save(answer.conversation);
        }
      }
      this.grown.clear();
      this.follow();
    });
  }

  follow() {
    if (this.follows) this.scroller.scrollTop = this.scroller.scrollHeight;
    else this.scrolled();
  }

  unfollow() {
    if (this.scroller.scrollHeight > this.scroller.clientHeight) this.follows = false;
  }

  scrolled() {
    const { scrollHeight, scrollTop, clientHeight } = this.scroller;
    const below = scrollHeight - scrollTop - clientHeight;
    if (below < 8) this.follows = true;
    else if (scrollTop < (this.lastTop ?? 0) - 4) this.follows = false;
    this.lastTop = scrollTop;
    $("to-end").hidden = this.follows || below < 120;
  }

  toEnd() {
    this.follows = true;
    this.follow();
    $("to-end").hidden = true;
  }
}
