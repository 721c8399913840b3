// Every request of the page: the key, errors in one form, and the stream of a reply.

import { SseReader, progress_parse, queue_parse } from "./sse.js";

const KEY = "lca.key";

export class ServerError extends Error {
  /** status 0: the server did not answer. */
  constructor(status, message, retry_after = null) {
    super(message);
    this.status = status;
    this.retry_after = retry_after;
  }
}

let key_ask = async () => null;

/** ask() shows the prompt and resolves to a key, or to null if it was dismissed. */
export function key_asks_with(ask) {
  key_ask = ask;
}

export function key_set(key, remember) {
  sessionStorage.setItem(KEY, key);
  if (remember) localStorage.setItem(KEY, key);
  else localStorage.removeItem(KEY);
}

function key_get() {
  return sessionStorage.getItem(KEY) ?? localStorage.getItem(KEY);
}

async function error_of(response) {
  let message = `The server answered ${response.status}.`;
  try {
    const body = await response.json();
    message = body.error?.message ?? body.message ?? message;
  } catch {
    // No JSON: the status says it.
  }
  return new ServerError(response.status, message, response.headers.get("Retry-After"));
}

async function send(path, options) {
  for (;;) {
    const headers = new Headers(options.headers);
    const key = key_get();
    if (key) headers.set("Authorization", `Bearer ${key}`);
    let response;
    try {
      response = await fetch(path, { ...options, headers, cache: "no-store" });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new ServerError(0, "The server does not answer.");
    }
    if (response.status !== 401) {
      if (!response.ok) throw await error_of(response);
      return response;
    }
    if (key_get() !== key) continue;  // another request has got a key meanwhile
    if ((await key_ask(key !== null)) === null) throw await error_of(response);
  }
}

/** Behind a router, all requests of a session go to the replica that has it in memory. */
export function routing_headers(session) {
  return session ? { "X-SMG-Routing-Key": session } : {};
}

export async function api_get(path, options = {}) {
  return (await send(path, options)).json();
}

export async function api_send(method, path, body) {
  const options = { method };
  if (body !== undefined) {
    options.body = JSON.stringify(body);
    options.headers = { "Content-Type": "application/json" };
  }
  const text = await (await send(path, options)).text();
  return text === "" ? null : JSON.parse(text);
}

export async function health_get() {
  try {
    const response = await fetch("/health", { cache: "no-store" });
    return response.ok ? "ready" : "loading";
  } catch {
    return "away";
  }
}

/**
 * Streams a chat completion. on: {progress({done, total, seconds_left} or {queued}), text(piece)}.
 * Resolves to {usage, finish, model}; a stream without its end is a ServerError of status 0.
 */
export async function chat_stream(body, signal, on) {
  const response = await send("/v1/chat/completions", {
    method: "POST",
    body: JSON.stringify({ ...body, stream: true, stream_options: { include_usage: true } }),
    headers: { "Content-Type": "application/json", ...routing_headers(body.metadata?.session) },
    signal,
  });
  const result = { usage: null, finish: null, model: null };
  let ended = false;
  let failure = null;
  const reader = new SseReader(
    (name, data) => {
      if (data === "[DONE]") {
        ended = true;
        return;
      }
      const chunk = JSON.parse(data);
      if (chunk.error) {
        failure = new ServerError(chunk.error.status ?? 500, chunk.error.message ?? "The reply failed.");
        return;
      }
      result.model = chunk.model ?? result.model;
      result.usage = chunk.usage ?? result.usage;
      const choice = chunk.choices?.[0];
      if (choice?.delta?.content) on.text(choice.delta.content);
      result.finish = choice?.finish_reason ?? result.finish;
    },
    (comment) => {
      const progress = progress_parse(comment) ?? queue_parse(comment);
      if (progress) on.progress(progress);
    },
  );
  const source = response.body.pipeThrough(new TextDecoderStream()).getReader();
  try {
    for (;;) {
      const { done, value } = await source.read();
      if (done) break;
      reader.feed(value);
    }
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServerError(0, "The connection was lost.");
  }
  if (failure) throw failure;
  if (!ended) throw new ServerError(0, "The connection was lost.");
  return result;
}
