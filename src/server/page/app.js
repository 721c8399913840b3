// The page: asking, sessions, and how the parts hang together.

import { api_get, api_send, key_asks_with } from "./api.js";
import { cache_clear, cache_load, cache_watch, figures_show } from "./cache.js";
import { dialog_ask, key_ask, settings_wire } from "./dialogs.js";
import { document_read, drops_accept } from "./documents.js";
import { make } from "./format.js";
import { columns_cut, reply_stream, wire_count } from "./reply.js";
import { config_load, error_show, server_watch } from "./server.js";
import { sessions_merge, sessions_show } from "./sessions.js";
import { announce, notice, part, state } from "./state.js";
import {
  conversation_delete, conversation_load, conversation_markdown, conversation_save, conversations_all,
  name_make, partial_drop, partial_write,
} from "./store.js";
import {
  buttons_update, conversation_show, near_bottom, progress_show, scroll_down, view_actions, view_update, views_update,
} from "./view.js";

const PARTIAL_MS = 150;  // between writes of a reply that runs

// --- the conversation ------------------------------------------------------------------------
/** Saves; a browser that has no room left must not keep anyone from talking. */
async function conversation_keep(conversation) {
  try {
    await conversation_save(conversation);
  } catch {
    notice("The browser has no room to keep this conversation; export it before you leave.");
  }
}

let openings = 0;

async function conversation_open(name) {
  const opening = ++openings;
  await running_stop();
  notice("");
  cache_clear();
  let conversation = name ? await conversation_load(name) : null;
  if (name && !conversation && state.saved.some((one) => one.name === name)) {
    conversation = await conversation_from_server(name);
  }
  if (opening !== openings) return;  // another one was asked for meanwhile
  state.conversation = conversation;
  const target = conversation ? `#${conversation.name}` : "";
  if (location.hash !== target && state.config !== null) {
    // An address of nothing is not worth going back to.
    const change = name && !conversation ? "replaceState" : "pushState";
    history[change](null, "", target || location.pathname);
  }
  conversation_show();
  sessions_view();
  scroll_down();
  await cache_load();
}

/** Another tab may have gone on with this conversation. */
async function conversation_refresh() {
  const { conversation } = state;
  if (document.hidden || state.running || !conversation) return;
  const kept = await conversation_load(conversation.name);
  if (!kept || kept.updated <= conversation.updated || state.running || state.conversation !== conversation) return;
  state.conversation = kept;
  conversation_show();
  await Promise.all([sessions_load(), cache_load()]);
}

/** A session that another browser began. */
async function conversation_from_server(name) {
  const conversation = { name, title: name, created: Date.now(), updated: Date.now(), messages: [] };
  try {
    const { messages } = await api_get(`/v1/sessions/${encodeURIComponent(name)}/messages`);
    const system = messages.find((message) => message.role === "system");
    if (system) conversation.system = system.content;
    conversation.messages = messages
      .filter((message) => message.role === "user" || message.role === "assistant")
      .map(({ role, content }) => ({ role, content }));
    const first = conversation.messages.find((message) => message.role === "user");
    if (first) conversation.title = title_make(first.content);
    await conversation_keep(conversation);
  } catch (error) {
    if (error.status === 404) notice("The text of this session is neither here nor on the server; its cache is shown.");
    else error_show(error);
  }
  return conversation;
}

function title_make(text) {
  const line = text.trim().split("\n")[0];
  return line.length > 60 ? `${line.slice(0, 59)}…` : line;
}

// --- asking ----------------------------------------------------------------------------------
async function question_send() {
  const content = part("question").value.trim();
  if (state.running || state.away || state.config === null) return;
  if (content === "" && !state.attached) return;
  notice("");
  if (!state.conversation) {
    const title = title_make(content || state.attached.name);
    state.conversation = { name: name_make(), title, created: Date.now(), updated: 0, messages: [] };
    if (state.settings.system) state.conversation.system = state.settings.system;
    history.pushState(null, "", `#${state.conversation.name}`);
  }
  const { messages } = state.conversation;
  const question = { role: "user", content };
  if (state.attached) question.document = state.attached;
  // A reply that was stopped stays as it is; the conversation goes on after it.
  messages.push(question);
  const reply = { role: "assistant", content: "", cut: "running" };
  if (state.config.compare && part("compare").checked) reply.dense = { content: "", cut: "running" };
  messages.push(reply);
  part("question").value = "";
  state.attached = null;
  await reply_run(messages.length - 1);
}

function reply_run(index) {
  if (state.running || state.config === null) return null;
  const { conversation } = state;
  const run = { controller: new AbortController(), begun: false, progress: null, conversation, index };
  state.running = run;
  run.finished = reply_follow(run);
  return run.finished;
}

async function reply_follow(run) {
  const { conversation, index } = run;
  const message = conversation.messages[index];
  const columns = columns_cut(message, state.config);
  notice("");
  conversation_show();
  buttons_update();
  scroll_down();
  part("question").focus();
  const partial_keep = () => partial_write(conversation.name, index, message);
  partial_keep();  // in place of an older reply's
  await conversation_keep(conversation);
  sessions_load();

  let frame = 0;
  let kept = 0;
  const clock = setInterval(() => {
    if (run.progress) progress_show(run, run.progress);
    else if (!run.begun) progress_show(run, { queued: null });
  }, 500);
  const begin = () => {
    if (run.begun) return;
    run.begun = true;
    cache_watch(run);
  };
  const { signal } = run.controller;
  const error = await reply_stream(conversation, index, columns, state.config, state.settings, signal, {
    begin: (target) => {
      begin();
      if (target === columns[0]) {
        progress_show(run, null);
        announce("The reply begins.");
      }
    },
    progress: (target, progress) => {
      if (progress.queued === undefined) begin();
      if (target === columns[0]) progress_show(run, progress);
    },
    end: partial_keep,  // the other column may write nothing for long
    change: () => {
      if (Date.now() - kept > PARTIAL_MS) {
        kept = Date.now();
        partial_keep();
      }
      if (frame === 0) {
        frame = requestAnimationFrame(() => {
          frame = 0;
          if (state.conversation !== conversation) return;
          const follow = near_bottom();
          if (index < state.views.length) view_update(index);
          figures_show(message);
          if (follow) scroll_down();
        });
      }
    },
  });
  clearInterval(clock);
  state.running = null;
  await conversation_keep(conversation);
  partial_drop(conversation.name);
  const follow = near_bottom();
  progress_show(run, null);
  views_update();
  buttons_update();
  figures_show(message);
  if (follow) scroll_down();
  if (error) error_show(error);
  else announce(columns.some((column) => column.cut) ? "The reply was stopped." : "The reply is complete.");
  // The server drops what a reply that did not end had read, unless the session was saved before.
  if (message.cut && message.cut !== "length") state.cached.delete(conversation.name);
  await sessions_load();
  await cache_load();
}

/** Resolves when the reply is stopped and saved. */
async function running_stop() {
  state.running?.controller.abort();
  await state.running?.finished;
}

/** Takes the last question back into the composer, with its document. */
async function question_edit(index) {
  const { conversation } = state;
  const question = conversation.messages[index];
  conversation.messages.length = index;
  conversation_show();
  question_fill(question);
  await conversation_keep(conversation);
}

function question_fill(question) {
  part("question").value = question.content;
  state.attached = question.document ?? null;
  buttons_update();
  part("question").focus();
}

// --- sessions --------------------------------------------------------------------------------
async function sessions_load() {
  if (state.config?.sessions) {
    try {
      state.saved = (await api_get("/v1/sessions")).data;
    } catch (error) {
      error_show(error);
    }
  }
  await sessions_view();
}

async function sessions_view() {
  const sessions = sessions_merge(await conversations_all(), state.saved);
  sessions_show(part("session-list"), sessions, state.conversation?.name, {
    open: async (name) => {
      await conversation_open(name);
      sessions_toggle(false);
      part("question").focus();
    },
    remove: session_delete,
  });
}

async function fork_at(index) {
  const from = state.conversation;
  const question = from.messages[index].role === "user" ? from.messages[index] : null;
  const count = question ? index : index + 1;
  const to = name_make("fork");
  const at_message = wire_count(from, count);
  let failure = null;
  if (count > 0 && state.saved.some((one) => one.name === from.name)) {
    try {
      await api_send("POST", `/v1/sessions/${encodeURIComponent(from.name)}/fork`, { to, at_message });
    } catch (error) {
      // Without the cache the fork is only slower: the text is here.
      if (![400, 404, 409].includes(error.status)) failure = error;
    }
  }
  const messages = structuredClone(from.messages.slice(0, count));
  const fork = { name: to, title: `${from.title} (fork)`, created: Date.now(), messages };
  if (from.system) fork.system = from.system;
  await conversation_keep(fork);
  await sessions_load();
  await conversation_open(to);
  if (question) question_fill(question);
  part("question").focus();
  announce("You are in the fork.");
  if (failure) error_show(failure);
}

async function session_delete(session) {
  part("delete-text").textContent = `${session.title}: its text and its cache are deleted for good.`;
  if ((await dialog_ask(part("delete-dialog"))) !== "delete") return;
  try {
    if (session.name === state.conversation?.name) await running_stop();
    if (session.there) await session_delete_there(session.name);
    await conversation_delete(session.name);
    if (session.name === state.conversation?.name) await conversation_open(null);
  } catch (error) {
    error_show(error);
  }
  await sessions_load();
  part("session-new").focus();
}

async function session_delete_there(name) {
  try {
    await api_send("DELETE", `/v1/sessions/${encodeURIComponent(name)}`);
  } catch (error) {
    if (error.status !== 404) throw error;  // gone is what was wanted
  }
}

function conversation_export() {
  const { conversation } = state;
  const blob = new Blob([conversation_markdown(conversation)], { type: "text/markdown" });
  const address = URL.createObjectURL(blob);
  make("a", { href: address, download: `${conversation.name}.md` }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10000);
}

function sessions_toggle(open) {
  part("sessions").classList.toggle("open", open);
  part("sessions-toggle").setAttribute("aria-expanded", String(open));
}

// --- start -----------------------------------------------------------------------------------
async function document_take(file) {
  try {
    state.attached = await document_read(file, state.config?.max_body);
    notice("");
    announce(`${file.name} is added.`);
  } catch (error) {
    notice(error.message);
  }
  buttons_update();
  part("question").focus();
}

function controls_wire() {
  part("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    question_send();
  });
  part("question").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      question_send();
    }
  });
  addEventListener("keydown", (event) => {
    if (event.key === "Escape" && state.running && !document.querySelector("dialog[open]")) running_stop();
  });
  part("stop").addEventListener("click", () => {
    running_stop();
    part("question").focus();
  });
  part("attach").addEventListener("click", () => part("file").click());
  part("file").addEventListener("change", async () => {
    const [file] = part("file").files;
    if (file) await document_take(file);
    part("file").value = "";
  });
  part("attached-remove").addEventListener("click", () => {
    state.attached = null;
    buttons_update();
    part("question").focus();
  });
  part("session-new").addEventListener("click", async () => {
    await conversation_open(null);
    sessions_toggle(false);
    part("question").focus();
  });
  part("sessions-toggle").addEventListener("click", () => {
    sessions_toggle(part("sessions-toggle").getAttribute("aria-expanded") !== "true");
  });
  part("export").addEventListener("click", conversation_export);
  drops_accept(document_take);
  addEventListener("popstate", () => conversation_open(location.hash.slice(1) || null));
  addEventListener("pagehide", () => {
    const run = state.running;
    if (run) partial_write(run.conversation.name, run.index, run.conversation.messages[run.index]);
  });
  document.querySelector(".skip").addEventListener("click", (event) => {
    event.preventDefault();  // the address names the session
    part("question").focus();
  });
  addEventListener("visibilitychange", conversation_refresh);
  server_watch(buttons_update, async () => {
    await sessions_load();
    // A session that only the server has could not be opened before.
    if (!state.conversation && location.hash !== "") await conversation_open(location.hash.slice(1));
    else await cache_load();
  });
}

async function start() {
  key_asks_with(key_ask);
  Object.assign(view_actions, { fork: fork_at, resume: reply_run, edit: question_edit });
  settings_wire();
  controls_wire();
  buttons_update();
  let failure = null;
  try {
    await config_load();
  } catch (error) {
    failure = error;
  }
  await sessions_load();
  await conversation_open(location.hash.slice(1) || null);
  if (failure) error_show(failure);
  part("question").focus();
  document.body.dataset.ready = "true";
}

start();
