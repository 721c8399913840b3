// Server-sent events, read from chunks that may be cut anywhere.

export class SseReader {
  #rest = "";
  #data = [];
  #name = "";

  /** on_event(name, data) for each event, on_comment(text) for each comment line. */
  constructor(on_event, on_comment) {
    this.on_event = on_event;
    this.on_comment = on_comment;
  }

  feed(text) {
    this.#rest += text;
    let begin = 0;
    for (;;) {
      const end = this.#rest.indexOf("\n", begin);
      if (end < 0) break;
      const line = this.#rest.slice(begin, end);
      this.#line(line.endsWith("\r") ? line.slice(0, -1) : line);
      begin = end + 1;
    }
    this.#rest = this.#rest.slice(begin);
  }

  #line(line) {
    if (line === "") {
      if (this.#data.length > 0) this.on_event(this.#name, this.#data.join("\n"));
      this.#data = [];
      this.#name = "";
      return;
    }
    if (line.startsWith(":")) {
      this.on_comment(line.slice(1).trim());
      return;
    }
    const colon = line.indexOf(":");
    const field = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (field === "data") this.#data.push(value);
    else if (field === "event") this.#name = value;
  }
}

/** "queued 3" → {queued: 3}: requests that are served before this one. */
export function queue_parse(comment) {
  const found = /^queued (\d+)/.exec(comment);
  return found ? { queued: Number(found[1]) } : null;
}

/** "reading 1234 of 7000 tokens, 12.3 s left" → {done, total, seconds_left}; anything else → null. */
export function progress_parse(comment) {
  const found = /^reading (\d+) of (\d+) tokens(?:, ([\d.]+) s left)?/.exec(comment);
  if (!found) return null;
  return {
    done: Number(found[1]),
    total: Number(found[2]),
    seconds_left: found[3] === undefined ? null : Number(found[3]),
  };
}
