// How one message looks: its text, its document, the figures below it and what can be done with it.

import { count_text, make, plural, seconds_text } from "./format.js";
import { markdown_show } from "./markdown.js";

const CUTS = {
  running: "The reply was interrupted.",
  stopped: "Stopped.",
  lost: "The connection was lost.",
  failed: "The reply failed.",
  length: "The reply reached its longest length.",
};

function figures_text(target) {
  const parts = [];
  if (target.usage) {
    parts.push(plural(target.usage.completion_tokens, "token"));
    const cached = target.usage.prompt_tokens_details?.cached_tokens ?? 0;
    parts.push(`${count_text(cached)} of ${count_text(target.usage.prompt_tokens)} prompt tokens cached`);
  }
  if (target.first != null) parts.push(`first after ${seconds_text(target.first)}`);
  if (target.rate) parts.push(`${target.rate.toFixed(1)} tokens/s`);
  return parts.join(" · ");
}

class Column {
  constructor(target, title) {
    this.target = target;
    this.text = make("div", { class: "text" });
    this.foot = make("p", { class: "foot" });
    this.element = make("div", { class: "column" }, title ? make("h4", {}, title) : null, this.text, this.foot);
  }

  update(running) {
    markdown_show(this.text, this.target.content);
    this.text.classList.toggle("writing", running && this.target.cut === "running");
    const reason = this.target.cut && !(running && this.target.cut === "running");
    this.foot.replaceChildren(
      ...(reason ? [make("span", { class: "cut" }, CUTS[this.target.cut] ?? this.target.cut)] : []),
      figures_text(this.target),
    );
  }
}

/** actions: {fork(index), resume(index), edit(index)}; names: {model, continues, compares}: of the server. */
export class MessageView {
  constructor(message, index, actions, names) {
    this.message = message;
    this.continues = names.continues;
    this.compares = names.compares;
    const user = message.role === "user";
    this.element = make("article", { class: `message ${message.role}`, "aria-label": user ? "You" : "Model" },
      make("h3", {}, user ? "You" : names.model));
    this.columns = [];
    if (user) {
      if (message.document) {
        const { name, text } = message.document;
        this.element.append(make("details", { class: "document" },
          make("summary", {}, `${name}, ${plural(text.length, "character")}`),
          make("pre", { tabindex: "0", role: "group", "aria-label": name }, text)));
      }
      this.element.append(make("div", { class: "text" }, message.content));
    } else if (message.dense) {
      this.columns = [new Column(message, "LCA"), new Column(message.dense, "Dense")];
      this.element.classList.add("compared");
      this.element.append(make("div", { class: "columns" }, ...this.columns.map((column) => column.element)));
    } else {
      this.columns = [new Column(message, null)];
      this.element.append(this.columns[0].element);
    }
    const act = (name, label, title) =>
      make("button", { type: "button", class: "quiet", "aria-label": title, onclick: () => actions[name](index) }, label);
    this.resume = act("resume", "Continue", "Continue this reply");
    // Names begin with what is on the button: who speaks to the page says what they see.
    this.fork = act("fork", "Fork here", `Fork here: ${user ? "before this question" : "after this reply"}`);
    this.edit = act("edit", "Edit", "Edit this question");
    this.buttons = make("div", { class: "foot" }, ...(user ? [this.fork, this.edit] : [this.resume, this.fork]));
    this.element.append(this.buttons);
  }

  update({ running, last, last_question }) {
    for (const column of this.columns) column.update(running && last);
    const { message } = this;
    const cut = message.cut || (this.compares && message.dense?.cut);
    this.buttons.style.visibility = running ? "hidden" : "";  // keeps its place: nothing jumps
    this.resume.hidden = !(last && cut);
    const label = message.content === "" ? "Try again" : this.continues ? "Continue" : "Write again";
    this.resume.textContent = label;
    this.resume.setAttribute("aria-label", `${label}: this reply`);
    this.edit.hidden = !last_question;
  }
}
