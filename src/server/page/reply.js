// One reply, streamed into a message; with --compare a second one beside it, from the dense instance.

import { chat_stream } from "./api.js";
import { message_text } from "./store.js";

/** A reply that failed before its first word is no turn of the conversation. */
function message_is_sent(message) {
  return message.role !== "assistant" || message.content !== "";
}

function wire_messages(conversation, index, dense) {
  const wire = conversation.system ? [{ role: "system", content: conversation.system }] : [];
  for (const message of conversation.messages.slice(0, index)) {
    if (!message_is_sent(message)) continue;
    const own = dense && message.dense ? message.dense.content : message_text(message);
    wire.push({ role: message.role, content: own });
  }
  return wire;
}

/** How many messages of a request the first `count` of a conversation are. */
export function wire_count(conversation, count) {
  const sent = conversation.messages.slice(0, count).filter(message_is_sent).length;
  return sent + (conversation.system ? 1 : 0);
}

/**
 * Streams the reply `index` of a conversation, from its start or from where it was cut.
 * on: {change(), end(), progress(target, progress), begin(target)}. Throws what the stream throws,
 * after target.cut says why the reply is incomplete.
 */
async function column_stream(conversation, index, target, dense, model, settings, signal, on) {
  const messages = wire_messages(conversation, index, dense);
  const body = { model, messages };
  if (settings.temperature !== null) body.temperature = settings.temperature;
  if (settings.max_tokens) body.max_tokens = settings.max_tokens;
  if (!dense) body.metadata = { session: conversation.name };
  if (target.content !== "") {
    messages.push({ role: "assistant", content: target.content });
    body.continue_final_message = true;
  }
  target.cut = "running";
  target.usage = null;
  const started = performance.now();
  let first = 0;
  let last = 0;
  let pieces = 0;
  try {
    const result = await chat_stream(body, signal, {
      progress: (progress) => on.progress(target, progress),
      text: (piece) => {
        const now = performance.now();
        if (pieces === 0) {
          first = now;
          target.first = (now - started) / 1000;
          on.begin(target);
        }
        pieces += 1;
        last = now;
        target.content += piece;
        if (pieces > 1) target.rate = ((pieces - 1) * 1000) / Math.max(1, last - first);
        on.change();
      },
    });
    const tokens = result.usage?.completion_tokens ?? pieces;
    // A piece may hold several tokens: the server's count is the right one. The stream ends later than the last
    // piece comes: a session is saved in between.
    if (tokens > 1 && pieces > 1) target.rate = ((tokens - 1) * 1000) / Math.max(1, last - first);
    target.usage = result.usage;
    target.cut = result.finish === "length" ? "length" : null;
  } catch (error) {
    target.cut = error.name === "AbortError" ? "stopped" : error.status === 0 ? "lost" : "failed";
    throw error;
  } finally {
    on.end();
    on.change();
  }
}

/** The columns that a reply goes on with: those that broke off; if none did, those at their longest length. */
export function columns_cut(message, config) {
  const cut = [message, config.compare ? message.dense : null].filter((column) => column?.cut);
  const broken = cut.filter((column) => column.cut !== "length");
  return broken.length > 0 ? broken : cut;
}

/** All `columns` at once; resolves to the first error that is not a stop, or null. */
export async function reply_stream(conversation, index, columns, config, settings, signal, on) {
  const message = conversation.messages[index];
  const results = await Promise.allSettled(columns.map((column) => {
    if (!config.continues) column.content = "";
    const dense = column !== message;
    const { model } = dense ? config.compare : config;
    return column_stream(conversation, index, column, dense, model, settings, signal, on);
  }));
  const failed = results.find((one) => one.status === "rejected" && one.reason.name !== "AbortError");
  return failed ? failed.reason : null;
}
