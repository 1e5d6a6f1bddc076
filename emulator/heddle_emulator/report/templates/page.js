"use strict";
// Adds texts that appear under the pointer. The tables of the page have all of them too.
(() => {
  const tip = document.createElement("div");
  tip.id = "tip";
  tip.hidden = true;
  document.body.append(tip);

  const show = (text, event) => {
    tip.textContent = text;
    tip.hidden = false;
    const left = Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8);
    const above = event.clientY - tip.offsetHeight - 10;
    tip.style.left = `${Math.max(8, left)}px`;
    tip.style.top = `${above > 4 ? above : event.clientY + 18}px`;
  };

  const cell = (picture, event) => {
    const box = picture.firstElementChild.getBoundingClientRect(); // crosses may extend beyond it
    const names = JSON.parse(picture.closest("[data-names]").dataset.names);
    const column = Math.floor((event.clientX - box.left) / box.width * names.columns.length);
    const row = Math.floor((event.clientY - box.top) / box.height * names.rows.length);
    if (!(names.rows[row] && names.columns[column])) return "";
    picture.bytes ??= atob(picture.dataset.cells);
    const byte = picture.bytes.charCodeAt(row * names.columns.length + column);
    const ends = [names.columns[column], names.rows[row]];
    if (!names.fromColumns) ends.reverse();
    const cable = ends.join(" → ");
    if (byte === 255) return `${cable}: no cable`;
    if (byte === 254) return `${cable}: down`;
    return `${cable}: ${byte === 253 ? "253 % or more" : `${byte} %`}`;
  };

  for (const picture of document.querySelectorAll("[data-cells]")) {
    picture.addEventListener("pointermove", (event) => {
      const text = cell(picture, event);
      if (text) show(text, event); else tip.hidden = true;
    });
    picture.addEventListener("pointerleave", () => { tip.hidden = true; });
  }

  for (const button of document.querySelectorAll("button[data-copy]")) {
    button.hidden = !navigator.clipboard;
    button.addEventListener("click", async () => {
      const text = document.getElementById(button.dataset.copy).textContent;
      await navigator.clipboard.writeText(text);
      button.textContent = "copied";
    });
  }

  addEventListener("beforeprint", () => {
    for (const one of document.querySelectorAll("details:not([open])")) {
      one.open = true;
      one.dataset.printed = "";
    }
  });
  addEventListener("afterprint", () => {
    for (const one of document.querySelectorAll("details[data-printed]")) one.open = false;
  });
})();
