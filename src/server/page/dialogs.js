// Questions the page asks: the key, and whether to delete. And the settings.

import { key_set } from "./api.js";
import { part, state } from "./state.js";

const SETTINGS = "lca.settings";

export function dialog_ask(dialog) {
  dialog.returnValue = "cancel";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue), { once: true });
  });
}

let key_asking = null;

/** Requests that fail together ask once. */
export function key_ask(wrong) {
  key_asking ??= (async () => {
    part("key-text").textContent = wrong ? "The server does not accept this key." : "This server wants a key.";
    part("key").value = "";
    const answer = await dialog_ask(part("key-dialog"));
    key_asking = null;
    const key = part("key").value;
    part("key").value = "";
    if (answer !== "use" || key === "") return null;
    key_set(key, part("key-remember").checked);
    return key;
  })();
  return key_asking;
}

export function settings_wire() {
  try {
    Object.assign(state.settings, JSON.parse(localStorage.getItem(SETTINGS) ?? "{}"));
  } catch {
    // Not ours: the defaults.
  }
  part("system").value = state.settings.system ?? "";
  part("temperature").value = state.settings.temperature ?? "";
  part("max-tokens").value = state.settings.max_tokens ?? "";
  part("settings").addEventListener("change", () => {
    const temperature = part("temperature").valueAsNumber;
    const longest = part("max-tokens").valueAsNumber;
    state.settings = {
      system: part("system").value.trim(),
      temperature: Number.isFinite(temperature) ? Math.min(2, Math.max(0, temperature)) : null,
      max_tokens: longest >= 1 ? Math.floor(longest) : null,
    };
    localStorage.setItem(SETTINGS, JSON.stringify(state.settings));
  });
}
