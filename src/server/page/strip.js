// The cache as a strip: one cell per group, in the order of the tokens. Sink, condensed groups, window.
//
// A canvas, because there may be tens of thousands of cells. To the keyboard and to screen readers it
// is a slider, whose value is a cell and whose value text is what the cell holds; a picture while
// there are no cells.

import { count_text, plural } from "./format.js";

const LARGEST = 14;  // side of a cell in CSS pixels, gap included
const SMALLEST = 3;
const ROWS_HEIGHT = 84;  // cells shrink until they fit this height; then the strip scrolls
const FADE_MS = 900;
const TEXT_TOKENS = 2048;  // of one request for texts

const KINDS = { sink: "Sink", group: "Condensed group", window: "Window" };

export class CacheStrip {
  #info = null;
  #texts = new Map();  // "first-last" → text
  #asked = new Set();
  #fresh = new Map();  // cell → time it was condensed
  #picked = -1;
  #hovered = -1;
  #frame = 0;
  #generation = 0;

  /** parts: {canvas, box, title, text, summary, detail}; texts_get(first, last) → {first, tokens}. */
  constructor(parts, texts_get) {
    this.parts = parts;
    this.texts_get = texts_get;
    const { canvas, box } = parts;
    new ResizeObserver(() => this.#draw_soon()).observe(box);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.#draw_soon());
    canvas.addEventListener("pointermove", (event) => this.#hover(this.#cell_at(event)));
    canvas.addEventListener("pointerdown", (event) => {
      const cell = this.#cell_at(event);
      if (cell >= 0) this.#pick(cell);
    });
    canvas.addEventListener("pointerleave", () => this.#hover(-1));
    canvas.addEventListener("keydown", (event) => this.#key(event));
    canvas.addEventListener("focus", () => {
      if (this.#picked < 0 && this.cells > 0) this.#pick(0);
      else this.#describe();
    });
    canvas.addEventListener("blur", () => {
      this.#describe();
      this.#draw_soon();
    });
    box.addEventListener("scroll", () => this.#describe());
  }

  /** The texts of another session are other texts. */
  clear() {
    this.#generation += 1;
    this.#texts.clear();
    this.#asked.clear();
    this.#fresh.clear();
    this.#picked = -1;
    this.#hovered = -1;
    this.show(null);
  }

  get cells() {
    return this.#info ? this.#info.cells : 0;
  }

  /** info: the reply of GET /cache/{name}, or null; group: tokens of a group, used before there is one. */
  show(info, group = 16) {
    const before = this.#info;
    if (info === null) {
      this.#info = null;
    } else {
      // Between sink and window; a window alone condenses nothing and forgets them.
      const between = info.tokens - info.sink - info.window;
      const size = info.groups > 0 ? between / info.groups : Math.max(1, group || 16);
      const forgotten = info.groups > 0 ? 0 : between;
      const sinks = Math.ceil(info.sink / size);
      const windows = Math.ceil(info.window / size);
      this.#info = { ...info, size, forgotten, sinks, windows, cells: sinks + info.groups + windows };
      if (before && info.tokens < before.tokens) {
        this.#texts.clear();
        this.#asked.clear();
      }
      const now = performance.now();
      const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
      if (before && !calm) {
        for (let group_at = before.groups; group_at < info.groups; ++group_at) {
          this.#fresh.set(sinks + group_at, now);
        }
      }
    }
    if (this.#picked >= this.cells) this.#picked = this.cells - 1;
    this.#describe();
    this.#draw_soon();
  }

  #range(cell) {
    const { sinks, groups, windows, sink, size, tokens, window: exact } = this.#info;
    if (cell < sinks) {
      const first = cell * size;
      return { kind: "sink", first, last: Math.min(sink, first + size) - 1, number: cell + 1, of: sinks };
    }
    const at = cell - sinks;
    if (at < groups) {
      const first = sink + at * size;
      return { kind: "group", first, last: first + size - 1, number: at + 1, of: groups };
    }
    const first = tokens - exact + (at - groups) * size;
    const last = Math.min(tokens, first + size) - 1;
    return { kind: "window", first, last, number: at - groups + 1, of: windows };
  }

  /** The slider's attributes; without cells none, for it has no value then and takes no focus. */
  #slider_show(value_text) {
    const { canvas } = this.parts;
    const attributes = { tabindex: 0, "aria-valuemin": 1, "aria-valuemax": this.cells,
      "aria-valuenow": Math.max(0, this.#picked) + 1, "aria-valuetext": value_text };
    canvas.setAttribute("role", this.cells > 0 ? "slider" : "img");
    for (const [name, value] of Object.entries(attributes)) {
      if (this.cells > 0) canvas.setAttribute(name, String(value));
      else canvas.removeAttribute(name);
    }
  }

  #describe() {
    const { canvas, title, text, summary, detail } = this.parts;
    const picked = document.activeElement === canvas ? this.#picked : -1;
    const cell = this.#hovered >= 0 ? this.#hovered : picked;
    detail.hidden = cell < 0 || cell >= this.cells;
    if (!this.#info || this.cells === 0) {
      summary.textContent = "The cache is empty.";
      title.textContent = "";
      text.textContent = "";
      this.#slider_show("");
      return;
    }
    const { sink, groups, size, forgotten, window: exact, tokens } = this.#info;
    const older = forgotten > 0 ? `${count_text(forgotten)} forgotten`
      : `${plural(groups, "condensed group")} of ${count_text(size)}`;
    summary.textContent =
      `${plural(tokens, "token")}: ${count_text(sink)} sink, ${older}, ${count_text(exact)} in the window.`;
    if (cell < 0) {
      title.textContent = "";
      text.textContent = "";
      this.#slider_show(summary.textContent);
      return;
    }
    const range = this.#range(cell);
    const known = this.#texts.get(`${range.first}-${range.last}`);
    title.textContent =
      `${KINDS[range.kind]} ${count_text(range.number)} of ${count_text(range.of)}, ` +
      `tokens ${count_text(range.first)}–${count_text(range.last)}`;
    // Two lines have room: line breaks are shown, not made.
    text.textContent = known === undefined ? "…" : known.trim().replace(/\s*\n\s*/g, " ↵ ");
    this.#slider_show(`${title.textContent}: ${known ?? "text is loading"}`);
    if (known === undefined) this.#texts_load(cell);
    this.#detail_place(cell);
  }

  /** The text stands below its cell, as far as there is room. */
  #detail_place(cell) {
    const { canvas, box, detail } = this.parts;
    const { side, columns } = this.#layout();
    const left = canvas.offsetLeft + (cell % columns) * side - 16;
    const top = canvas.offsetTop + (Math.floor(cell / columns) + 1) * side - box.scrollTop + 6;
    detail.style.left = `${Math.max(0, Math.min(left, box.offsetLeft + box.clientWidth - detail.offsetWidth))}px`;
    detail.style.top = `${top}px`;
  }

  async #texts_load(cell) {
    // Neighbours come along: the pointer is likely to go there next.
    const many = Math.max(1, Math.floor(TEXT_TOKENS / this.#info.size));
    // Not across the window's beginning: what lies before it may be forgotten, and any number of tokens.
    const edge = this.cells - this.#info.windows;
    const block = cell - (cell % many);
    const begin = cell < edge ? block : Math.max(edge, block);
    const end = Math.min(cell < edge ? edge : this.cells, block + many);
    const first = this.#range(begin).first;
    const last = this.#range(end - 1).last;
    const question = `${first}-${last}`;
    if (this.#asked.has(question)) return;
    this.#asked.add(question);
    const generation = this.#generation;
    const ranges = [];
    for (let at = begin; at < end; ++at) ranges.push(this.#range(at));
    try {
      const reply = await this.texts_get(first, last);
      if (generation !== this.#generation) return;
      for (const range of ranges) {
        const tokens = reply.tokens.slice(range.first - reply.first, range.last + 1 - reply.first);
        this.#texts.set(`${range.first}-${range.last}`, tokens.join(""));
      }
    } catch {
      if (generation !== this.#generation) return;
      for (const range of ranges) this.#texts.set(`${range.first}-${range.last}`, "(no text)");
      setTimeout(() => {
        this.#texts.clear();
        this.#asked.clear();
      }, 2000);
    }
    this.#describe();
  }

  #layout() {
    const width = Math.max(40, this.parts.box.clientWidth);
    let side = LARGEST;
    let columns = 1;
    for (; side >= SMALLEST; --side) {
      columns = Math.floor(width / side);
      if (Math.ceil(this.cells / columns) * side <= ROWS_HEIGHT) break;
    }
    side = Math.max(side, SMALLEST);
    columns = Math.floor(width / side);
    const height = Math.max(1, Math.ceil(this.cells / columns)) * side;
    return { side, columns, width, height };
  }

  #draw_soon() {
    if (this.#frame === 0) this.#frame = requestAnimationFrame((now) => this.#draw(now));
  }

  #draw(now) {
    this.#frame = 0;
    const { canvas, box } = this.parts;
    const { side, columns, width, height } = this.#layout();
    const scale = window.devicePixelRatio || 1;
    const [wide, high] = [Math.round(width * scale), Math.round(height * scale)];
    if (canvas.width !== wide || canvas.height !== high) {
      canvas.width = wide;
      canvas.height = high;
      canvas.style.height = `${height}px`;
    }
    const brush = canvas.getContext("2d");
    brush.setTransform(scale, 0, 0, scale, 0, 0);
    brush.clearRect(0, 0, width, height);
    if (!this.#info) return;
    const style = getComputedStyle(box);
    const colour = (name) => style.getPropertyValue(`--${name}`).trim();
    const colours = { sink: colour("sink"), group: colour("group"), window: colour("window") };
    const [fresh, mark] = [colour("fresh"), colour("focus")];
    const gap = side >= 6 ? 2 : 1;
    const body = side - gap;
    const { sinks, groups } = this.#info;
    for (let cell = 0; cell < this.cells; ++cell) {
      const x = (cell % columns) * side;
      const y = Math.floor(cell / columns) * side;
      const kind = cell < sinks ? "sink" : cell < sinks + groups ? "group" : "window";
      brush.fillStyle = colours[kind];
      // Shapes as well as colours: the sink is round, the window hollow.
      if (kind === "sink" && body >= 5) {
        brush.beginPath();
        brush.arc(x + body / 2, y + body / 2, body / 2, 0, 2 * Math.PI);
        brush.fill();
      } else if (kind === "window" && body >= 5) {
        brush.strokeStyle = colours.window;
        brush.lineWidth = 1.5;
        brush.strokeRect(x + 0.75, y + 0.75, body - 1.5, body - 1.5);
      } else {
        brush.fillRect(x, y, body, body);
      }
    }
    for (const [cell, since] of this.#fresh) {
      const left = 1 - (now - since) / FADE_MS;
      if (left <= 0 || cell >= this.cells) {
        this.#fresh.delete(cell);
        continue;
      }
      brush.globalAlpha = Math.min(1, left);
      brush.fillStyle = fresh;
      brush.fillRect((cell % columns) * side, Math.floor(cell / columns) * side, body, body);
    }
    brush.globalAlpha = 1;
    const picked = document.activeElement === canvas ? this.#picked : -1;
    for (const cell of [picked, this.#hovered]) {
      if (cell < 0 || cell >= this.cells) continue;
      brush.strokeStyle = mark;
      brush.lineWidth = 2;
      brush.strokeRect((cell % columns) * side, Math.floor(cell / columns) * side, body, body);
    }
    if (this.#fresh.size > 0) this.#draw_soon();
  }

  #cell_at(event) {
    const { side, columns } = this.#layout();
    const bounds = this.parts.canvas.getBoundingClientRect();
    const column = Math.floor((event.clientX - bounds.left) / side);
    const row = Math.floor((event.clientY - bounds.top) / side);
    const cell = row * columns + column;
    return column >= 0 && column < columns && row >= 0 && cell < this.cells ? cell : -1;
  }

  #hover(cell) {
    if (cell === this.#hovered) return;
    this.#hovered = cell;
    if (this.#info) this.#describe();
    this.#draw_soon();
  }

  #pick(cell) {
    this.#picked = Math.min(this.cells - 1, Math.max(0, cell));
    this.#describe();
    this.#draw_soon();
  }

  #key(event) {
    if (this.cells === 0 || event.ctrlKey || event.altKey || event.metaKey) return;
    const { columns } = this.#layout();
    const steps = {
      ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns,
      PageDown: 10 * columns, PageUp: -10 * columns, Home: -this.cells, End: this.cells,
    };
    const step = steps[event.key];
    if (step === undefined) return;
    event.preventDefault();
    this.#pick(this.#picked + step);
  }
}
