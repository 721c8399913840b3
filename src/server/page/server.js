// Whether the server answers: its settings, its loss and its return.

import { api_get, health_get } from "./api.js";
import { make, plural } from "./format.js";
import { announce, notice, part, state } from "./state.js";

const HEALTH_MS = 10000;  // between looks at the server while nothing runs

let changed = () => {};
let returned = async () => {};

/** on_change() when the server is lost or back, on_return() after it is back. */
export function server_watch(on_change, on_return) {
  changed = on_change;
  returned = on_return;
  setInterval(async () => {
    if (state.away || state.running || document.hidden) return;
    if ((await health_get()) !== "ready") server_wait(true);
  }, HEALTH_MS);
}

function server_state(text, bad = false) {
  const element = part("server-state");
  if (element.textContent !== text) element.textContent = text;
  element.classList.toggle("bad", bad);
}

/** lost: whether it is known that the server was away. */
export function error_show(error, lost = state.config === null) {
  if (error.status === 0 || error.status === 503) server_wait(lost);
  const wait = error.retry_after ? ` Try again in ${error.retry_after} s.` : "";
  notice(error.message + wait);
}

export async function config_load() {
  state.config = await api_get("/page-config");
  part("model").replaceChildren(make("strong", {}, state.config.model),
    ` ${plural(state.config.context, "token")} of context`);
  part("compare-label").hidden = !state.config.compare;
  state.away = false;
  server_state("");
  changed();
}

/** Waits until the server answers, then takes up where things were. */
async function server_wait(lost) {
  if (state.away) return;
  state.away = true;
  changed();
  for (let pause = 500; ; pause = Math.min(5000, pause * 1.5)) {
    const health = await health_get();
    if (health === "ready") break;
    lost = true;
    server_state(health === "loading" ? "The model is loading…" : "The server does not answer; trying again…",
      health === "away");
    await new Promise((resolve) => setTimeout(resolve, pause));
  }
  try {
    await config_load();
    if (!lost) return;  // one request failed beside a healthy server: its error stays to be read
    notice("");
    announce("The server is back.");
    await returned();
  } catch (error) {
    await new Promise((resolve) => setTimeout(resolve, 1000));
    state.away = false;
    error_show(error, lost);
  }
}
