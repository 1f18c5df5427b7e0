// A live page is reloaded every few seconds, unless the user is interacting with it.
"use strict";

function busy() {
  const focused = document.activeElement;
  return document.hidden || String(getSelection()) || document.querySelector("main input:checked") ||
    (focused && focused.matches("input, select, button, summary, pre"));
}

async function refresh() {
  if (!("live" in document.body.dataset) || busy()) return;
  const answer = await fetch(location.href).catch(() => null);
  document.getElementById("stale").hidden = Boolean(answer && answer.ok);
  if (!answer || !answer.ok) return;
  const next = new DOMParser().parseFromString(await answer.text(), "text/html");
  for (const old of document.querySelectorAll("details[id]")) {
    const its = next.getElementById(old.id);
    if (its) its.open = old.open;
  }
  const scrolled = scrollY;
  document.getElementById("main").replaceWith(next.getElementById("main"));
  scrollTo(0, scrolled);
  if (!("live" in next.body.dataset)) delete document.body.dataset.live;
}

setInterval(refresh, 10000);
