// Conversations, kept in the browser: the server's session is a cache of them, never the text itself.
//
// A conversation: {name, title, created, updated, messages}. A message: {role, content} and, as it
// applies, document {name, text}, cut (why the reply is incomplete), usage, rate, dense {content, …}.

const DATABASE = "lca";
const TABLE = "conversations";
const PARTIAL = "lca.partial.";

let opened = null;

function database() {
  opened ??= new Promise((resolve, reject) => {
    const request = indexedDB.open(DATABASE, 1);
    request.onupgradeneeded = () => request.result.createObjectStore(TABLE, { keyPath: "name" });
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
  return opened;
}

/** Without a database (some private windows) conversations last as long as the page. */
const memory = new Map();
const memory_table = {
  getAll: () => ({ result: [...memory.values()] }),
  get: (name) => ({ result: structuredClone(memory.get(name)) }),
  put: (value) => ({ result: memory.set(value.name, value) }),
  delete: (name) => ({ result: memory.delete(name) }),
};

async function transact(mode, act) {
  let transaction;
  try {
    transaction = (await database()).transaction(TABLE, mode);
  } catch {
    return act(memory_table).result;
  }
  const request = act(transaction.objectStore(TABLE));
  return new Promise((resolve, reject) => {
    transaction.oncomplete = () => resolve(request.result);
    transaction.onerror = () => reject(transaction.error);
    transaction.onabort = () => reject(transaction.error);
  });
}

export function conversations_all() {
  return transact("readonly", (table) => table.getAll());
}

export async function conversation_load(name) {
  const found = await transact("readonly", (table) => table.get(name));
  return found ? partial_apply(found) : null;
}

export async function conversation_save(conversation) {
  conversation.updated = Date.now();
  await transact("readwrite", (table) => table.put(structuredClone(conversation)));
}

export async function conversation_delete(name) {
  partial_drop(name);
  await transact("readwrite", (table) => table.delete(name));
}

// A running reply goes to localStorage: a write there is complete when it returns, so a reload at any
// moment finds it; a transaction of the database may be lost. Of two columns one may have ended.

const COLUMN = ["content", "cut", "usage", "rate", "first"];

function message_columns(message) {
  return message.dense ? [message, message.dense] : [message];
}

export function partial_write(name, index, message) {
  const columns = message_columns(message).map((column) => {
    const kept = Object.fromEntries(COLUMN.map((field) => [field, column[field] ?? null]));
    if (kept.cut === "lost") kept.cut = "running";  // who leaves the page loses the connection by that
    return kept;
  });
  try {
    localStorage.setItem(PARTIAL + name, JSON.stringify({ index, columns }));
  } catch {
    // Full: the reply goes on, only a reload would lose it.
  }
}

export function partial_drop(name) {
  localStorage.removeItem(PARTIAL + name);
}

function partial_apply(conversation) {
  const text = localStorage.getItem(PARTIAL + conversation.name);
  if (text === null) return conversation;
  const { index, columns = [] } = JSON.parse(text);
  const message = conversation.messages[index];
  if (message?.role !== "assistant") return conversation;
  const saved = message_columns(message);
  // With no column cut the whole reply is in the database.
  if (saved.some((column) => column.cut)) {
    saved.slice(0, columns.length).forEach((column, at) => Object.assign(column, columns[at]));
  }
  return conversation;
}

/** A name the server accepts, new with great likelihood. */
export function name_make(prefix = "chat") {
  const day = new Date().toISOString().slice(0, 16).replace(/[-:]/g, "").replace("T", "-");
  const random = crypto.getRandomValues(new Uint32Array(1))[0].toString(36).padStart(7, "0");
  return `${prefix}-${day}-${random.slice(-5)}`;
}

/** What the model reads for a message; the same bytes every time, so that the cache is found again. */
export function message_text(message) {
  if (!message.document) return message.content;
  const { name, text } = message.document;
  return `Document "${name}":\n\n${text}\n\n${message.content}`;
}

export function conversation_markdown(conversation) {
  const lines = [`# ${conversation.title}`, ""];
  for (const message of conversation.messages) {
    lines.push(message.role === "user" ? "## You" : "## Model", "");
    if (message.document) lines.push(`*Document: ${message.document.name}*`, "");
    lines.push(message.content + (message.cut ? " …" : ""), "");
    if (message.dense) lines.push("### Dense, the same question", "", message.dense.content, "");
  }
  return lines.join("\n");
}
