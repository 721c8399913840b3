// The cache of the open session: asked for, followed during a reply, and shown.

import { api_get, routing_headers } from "./api.js";
import { bytes_text, count_text } from "./format.js";
import { error_show } from "./server.js";
import { part, state } from "./state.js";
import { CacheStrip } from "./strip.js";

const CACHE_MS = 500;  // between looks at the cache during a reply

const strip = new CacheStrip(
  { canvas: part("strip"), box: part("strip-box"), title: part("strip-title"), text: part("strip-text"),
    summary: part("strip-summary"), detail: part("strip-detail") },
  async (first, last) => (await cache_get(`?text=${first}-${last}`)).text,
);

function cache_get(query = "") {
  const { name } = state.conversation;
  return api_get(`/cache/${encodeURIComponent(name)}${query}`, { headers: routing_headers(name) });
}

function cache_show(info) {
  strip.show(info, state.config?.group);
  part("cache-bytes").textContent =
    info?.tokens ? `${bytes_text(info.bytes)} instead of ${bytes_text(info.dense_bytes)}` : "";
  const ratio = info?.tokens ? info.dense_bytes / info.bytes : 1;
  part("cache-ratio").hidden = ratio < 1.05;
  part("cache-ratio").textContent = `${ratio.toFixed(1)}× smaller`;
}

export async function cache_load() {
  const { conversation } = state;
  if (!conversation || !conversation_has_cache(conversation)) {
    cache_clear();
    return;
  }
  try {
    const info = await cache_get();
    if (conversation === state.conversation) cache_show(info);
  } catch (error) {
    if (error.status !== 404 && error.status !== 409) error_show(error);
  }
}

/** Whether the server may have a cache; asking for one that cannot exist would be an error in its log. */
function conversation_has_cache(conversation) {
  return state.cached.has(conversation.name) || state.saved.some((one) => one.name === conversation.name);
}

export async function cache_watch(run) {
  state.cached.add(run.conversation.name);
  while (state.running === run) {
    await cache_load();
    await new Promise((resolve) => setTimeout(resolve, CACHE_MS));
  }
}

export function figures_show(target) {
  const cached = target?.usage?.prompt_tokens_details?.cached_tokens;
  part("figure-rate").textContent = target?.rate ? target.rate.toFixed(1) : "–";
  part("figure-cached").textContent = cached == null ? "–" : count_text(cached);
}

export function cache_clear() {
  strip.clear();
  cache_show(null);
}
