// What is open and what runs, and the places where the page says something.

export const part = (id) => document.getElementById(id);

export const state = {
  config: null,  // reply of /page-config
  conversation: null,  // null: a new one that has no message yet
  running: null,  // {controller, conversation, index, begun, progress, finished}
  attached: null,  // document of the next question
  saved: [],  // sessions the server has
  cached: new Set(),  // names the server has read something for since the page was opened
  settings: { system: "", temperature: 0, max_tokens: 512 },  // null: the server's
  views: [],  // MessageView of each message
  away: false,  // the server does not answer, or loads
};

export function announce(text) {
  part("announce").textContent = text;
}

export function notice(text) {
  part("notice").textContent = text;
}
