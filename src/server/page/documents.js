// Text and Markdown files, dropped or chosen.

import { bytes_text } from "./format.js";

/** Reads a file as UTF-8 text; an Error says what is wrong with it. */
export async function document_read(file, limit) {
  if (limit && file.size > limit) {
    throw new Error(`${file.name} has ${bytes_text(file.size)}; the server takes ${bytes_text(limit)} at most.`);
  }
  let text;
  try {
    text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
  } catch {
    throw new Error(`${file.name} is not UTF-8 text. Convert it to text or Markdown first.`);
  }
  if (text.includes("\0")) throw new Error(`${file.name} is not a text file.`);
  if (text.trim() === "") throw new Error(`${file.name} is empty.`);
  return { name: file.name, text };
}

/** take(file) for a file that is dropped anywhere on the page. */
export function drops_accept(take) {
  const has_file = (event) => [...(event.dataTransfer?.types ?? [])].includes("Files");
  addEventListener("dragover", (event) => {
    if (!has_file(event)) return;
    event.preventDefault();
    document.body.classList.add("dropping");
  });
  addEventListener("dragleave", (event) => {
    if (event.relatedTarget === null) document.body.classList.remove("dropping");
  });
  addEventListener("drop", (event) => {
    if (!has_file(event)) return;
    event.preventDefault();
    document.body.classList.remove("dropping");
    if (event.dataTransfer.files.length > 0) take(event.dataTransfer.files[0]);
  });
}
