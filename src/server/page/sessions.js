// The list of sessions: what the server has on disk, and what this browser has the text of.

import { age_text, bytes_text, make, plural } from "./format.js";

/** Both lists as one, newest first: {name, title, tokens, bytes, time, here, there}. */
export function sessions_merge(conversations, saved) {
  const all = new Map();
  for (const { name, title, updated } of conversations) {
    all.set(name, { name, title, time: updated, here: true, there: false });
  }
  for (const { name, tokens, bytes, saved: when } of saved) {
    const known = all.get(name) ?? { name, title: name, here: false };
    // Seconds since 1970, or a date.
    const time = typeof when === "number" ? when * 1000 : Date.parse(when) || 0;
    all.set(name, { ...known, tokens, bytes, time: Math.max(known.time ?? 0, time), there: true });
  }
  return [...all.values()].sort((a, b) => b.time - a.time || (a.name < b.name ? -1 : 1));
}

function detail_text(session) {
  const parts = [age_text(session.time)];
  if (session.there) parts.push(plural(session.tokens, "token"), bytes_text(session.bytes));
  else parts.push("in this browser only");
  return parts.join(" · ");
}

/** actions: {open(name), remove(session)}. */
export function sessions_show(list, sessions, current, actions) {
  const focused = list.contains(document.activeElement) ? document.activeElement.dataset.key : null;
  list.replaceChildren(...sessions.map((session) =>
    make("li", {},
      make("button", {
        type: "button", class: "session-open", "data-key": `open ${session.name}`,
        "aria-current": session.name === current ? "true" : null,
        onclick: () => actions.open(session.name),
      }, make("span", {}, session.title), make("small", {}, detail_text(session))),
      make("button", {
        type: "button", class: "session-delete", "data-key": `delete ${session.name}`,
        "aria-label": `Delete ${session.title}`, onclick: () => actions.remove(session),
      }, "✕"))));
  // The list is made anew after every reply; the keyboard must not lose its place.
  if (focused) [...list.querySelectorAll("button")].find((one) => one.dataset.key === focused)?.focus();
}
