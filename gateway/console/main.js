// Starts the page: views, the server's state, the key.

import { key, request } from "./api.js";
import * as chat from "./chat.js";
import { find } from "./dom.js";
import * as models from "./models.js";

const CHECK_MS = 10_000;

function showView() {
  const isModels = location.hash === "#models";
  find("chat-view").hidden = isModels;
  find("models-view").hidden = !isModels;
  const current = find(isModels ? "tab-models" : "tab-chat");
  document.querySelectorAll("nav a").forEach((link) => link.removeAttribute("aria-current"));
  current.setAttribute("aria-current", "page");
  document.title = isModels ? "Models – Tidegate" : "Chat – Tidegate";
  if (isModels) models.refresh();
}

async function showState() {
  let state = ["unreachable", "bad"];
  try {
    await request("v2/health/ready");
    state = ["ready", "good"];
  } catch (error) {
    if (error.status) state = ["not ready", ""];
  }
  const element = find("server-state");
  if (element.textContent !== state[0]) element.textContent = state[0]; // said again only when it changes
  element.className = state[1];
  return state[0] === "ready";
}

async function watchState() {
  const wasReady = find("server-state").className === "good";
  if ((await showState()) && !wasReady) loadModels();
  setTimeout(watchState, CHECK_MS);
}

function loadModels() {
  return chat.loadModels().catch(() => {}); // the reason is in the header, or in the dialog for a key
}

function askForKey(why) {
  if (why) find("key-why").textContent = why;
  find("key").value = key.get();
  if (!find("key-dialog").open) find("key-dialog").showModal();
}

function useKey(value) {
  key.set(value);
  find("key-dialog").close();
  find("open-key").textContent = value ? "API key ✓" : "API key";
  loadModels();
  showView();
}

chat.start();
models.start();
window.addEventListener("hashchange", showView);
document.addEventListener("models-changed", loadModels);
document.addEventListener("key-needed", (event) => askForKey(event.detail));
find("open-key").addEventListener("click", () => askForKey());
find("key-cancel").addEventListener("click", () => find("key-dialog").close());
find("key-forget").addEventListener("click", () => useKey(""));
find("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  useKey(find("key").value.trim());
});
if (key.get()) find("open-key").textContent = "API key ✓";
showView();
watchState();
