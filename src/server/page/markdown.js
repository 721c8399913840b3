// The Markdown that models write, as elements: headings, lists, quotes, code, tables left as text.
// Nothing becomes markup by itself, and a link is only a link if it is http or https.

import { make } from "./format.js";

const INLINE = /(`+)(.+?)\1(?!`)|\*\*(?=\S)(.+?)\*\*(?!\*)|\*(?=\S)([^*\n]+?)\*|\[([^\]\n]+)\]\((https?:\/\/[^\s()]+)\)/s;

const INLINE_MOST = 20000;  // characters; a longer paragraph stays plain, matching takes time with its square

function inline_append(parent, text) {
  if (text.length > INLINE_MOST) {
    parent.append(text);
    return;
  }
  let rest = text;
  while (rest !== "") {
    const found = INLINE.exec(rest);
    if (!found) break;
    if (found.index > 0) parent.append(rest.slice(0, found.index));
    if (found[1]) {
      parent.append(make("code", {}, found[2].trim()));
    } else if (found[3] !== undefined || found[4] !== undefined) {
      const element = make(found[3] !== undefined ? "strong" : "em");
      inline_append(element, found[3] ?? found[4]);
      parent.append(element);
    } else {
      parent.append(make("a", { href: found[6], rel: "noopener noreferrer", target: "_blank" }, found[5]));
    }
    rest = rest.slice(found.index + found[0].length);
  }
  if (rest !== "") parent.append(rest);
}

/** Sources of the blocks of a text: fences whole, else runs of lines between blank lines. */
export function blocks_split(text) {
  const blocks = [];
  let lines = [];
  let fence = "";
  const flush = () => {
    if (lines.length > 0) blocks.push(lines.join("\n"));
    lines = [];
  };
  for (const line of text.split("\n")) {
    const mark = /^ {0,3}(`{3,}|~{3,})/.exec(line)?.[1];
    if (fence !== "") {
      lines.push(line);
      if (mark && mark[0] === fence[0] && mark.length >= fence.length && line.trim() === mark) {
        fence = "";
        flush();
      }
    } else if (mark) {
      flush();
      fence = mark;
      lines.push(line);
    } else if (line.trim() === "") {
      flush();
    } else {
      if (/^#{1,6} /.test(line)) flush();
      lines.push(line);
      if (/^#{1,6} /.test(line)) flush();
    }
  }
  flush();
  return blocks;
}

function list_make(lines) {
  const list = make(/^\s*\d/.test(lines[0]) ? "ol" : "ul");
  const start = /^\s*(\d+)/.exec(lines[0])?.[1];
  if (start && start !== "1") list.setAttribute("start", start);
  let item = null;
  let source = "";
  const close = () => {
    if (item) inline_append(item, source);
  };
  for (const line of lines) {
    const found = /^\s*(?:[-*+]|\d{1,9}[.)])\s+(.*)$/.exec(line);
    if (found) {
      close();
      item = make("li");
      list.append(item);
      source = found[1];
    } else {
      source += `\n${line.trim()}`;
    }
  }
  close();
  return list;
}

function block_make(source) {
  const lines = source.split("\n");
  const fence = /^ {0,3}(`{3,}|~{3,})\s*(\S*)/.exec(lines[0]);
  if (fence) {
    const closed = lines.length > 1 && lines[lines.length - 1].trim().startsWith(fence[1]);
    const body = lines.slice(1, closed ? -1 : undefined).join("\n");
    // A region that scrolls must be reachable by keyboard.
    return make("pre", { tabindex: "0", role: "group", "aria-label": `Code ${fence[2]}`.trim() },
      make("code", {}, body));
  }
  const heading = /^(#{1,6}) (.*)$/.exec(source);
  let element;
  if (heading) {
    // The page's own headings are h1 and h2.
    element = make(`h${Math.min(6, heading[1].length + 2)}`);
    inline_append(element, heading[2].replace(/\s+#+\s*$/, ""));
  } else if (/^\s*([-*+]|\d{1,9}[.)])\s+/.test(lines[0])) {
    element = list_make(lines);
  } else if (lines.every((line) => line.startsWith(">"))) {
    element = make("blockquote");
    inline_append(element, lines.map((line) => line.replace(/^> ?/, "")).join("\n"));
  } else {
    element = make("p");
    inline_append(element, source);
  }
  return element;
}

/** Shows a text in an element; blocks that did not change keep their elements, so a stream costs little. */
export function markdown_show(parent, text) {
  const sources = blocks_split(text);
  const shown = (parent.markdown_sources ??= []);
  let same = 0;
  while (same < shown.length && same < sources.length && shown[same] === sources[same]) ++same;
  while (parent.childNodes.length > same) parent.lastChild.remove();
  for (const source of sources.slice(same)) parent.append(block_make(source));
  parent.markdown_sources = sources;
}
