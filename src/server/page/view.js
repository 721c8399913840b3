// The conversation on the screen: messages, buttons, progress, scrolling.

import { figures_show } from "./cache.js";
import { count_text, plural, seconds_text } from "./format.js";
import { MessageView } from "./messages.js";
import { announce, part, state } from "./state.js";

/** {fork(index), resume(index), edit(index)}, set at the start. */
export const view_actions = {};

export function conversation_show() {
  const { conversation } = state;
  const messages = conversation?.messages ?? [];
  const { model = "Model", continues = true, compare = null } = state.config ?? {};
  const names = { model, continues, compares: compare !== null };
  state.views = messages.map((message, index) =>
    new MessageView(message, index, view_actions, names));
  part("messages").replaceChildren(...state.views.map((view) => view.element));
  part("conversation-title").textContent = conversation?.title ?? "New session";
  part("export").hidden = messages.length === 0;
  part("welcome").hidden = messages.length > 0;
  views_update();
  figures_show(messages.findLast((message) => message.usage));
}

export function view_update(index) {
  const { messages } = state.conversation;
  const last_question = messages.findLastIndex((message) => message.role === "user");
  state.views[index].update({
    running: state.running !== null, last: index === messages.length - 1, last_question: index === last_question,
  });
}

export function views_update() {
  state.views.forEach((view, index) => view_update(index));
}

export function buttons_update() {
  const running = state.running !== null;
  part("send").disabled = running || state.away || state.config === null;
  part("send").hidden = running;
  part("stop").hidden = !running;
  part("progress").hidden = !(running && state.running.progress);
  part("attached").hidden = state.attached === null;
  part("attached-name").textContent =
    state.attached ? `${state.attached.name}, ${plural(state.attached.text.length, "character")}` : "";
}

/** What scrolls: the conversation, or on a small screen the page. */
function scroller() {
  const own = getComputedStyle(part("conversation")).overflowY === "auto";
  return own ? part("conversation") : document.documentElement;
}

export function near_bottom() {
  const { scrollHeight, scrollTop, clientHeight } = scroller();
  return scrollHeight - scrollTop - clientHeight < 120;
}

export function scroll_down() {
  scroller().scrollTop = scroller().scrollHeight;
}

/** progress: what the newest comment of the stream said ({queued: null}: there was none yet), or null. */
export function progress_show(run, progress) {
  run.progress = progress;
  part("progress").hidden = progress === null;
  if (!progress) return;
  if (progress.queued !== undefined) {
    part("progress-bar").removeAttribute("value");
    part("progress-text").textContent =
      progress.queued === null ? "Waiting for the server…"
        : `Waiting, ${plural(progress.queued, "request")} before this one`;
    return;
  }
  progress.at ??= performance.now();
  const { done, total, at, seconds_left } = progress;
  const share = total > 0 ? done / total : 0;
  // The server speaks every few seconds; the clock runs on in between.
  const left = seconds_left === null ? null : Math.max(0, seconds_left - (performance.now() - at) / 1000);
  part("progress-bar").value = share;
  part("progress-text").textContent =
    `Reading ${count_text(done)} of ${plural(total, "token")}` + (left === null ? "" : `, ${seconds_text(left)} left`);
  const quarter = Math.floor(share * 4);
  if (quarter !== run.quarter) announce(part("progress-text").textContent);
  run.quarter = quarter;
}
