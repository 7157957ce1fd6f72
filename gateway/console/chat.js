// The playground: a conversation with one model, streamed.

import { ApiError, events, json, request } from "./api.js";
import { find, make } from "./dom.js";
import { Figures, milliseconds, perSecond } from "./figures.js";

const NUMBERS = ["temperature", "top_p", "max_tokens", "seed", "top_k", "repetition_penalty"];
const FRAME_MS = 16;
const messages = []; // {role, content}: what the model is sent
let running = null; // AbortController of the answer under way

export async function loadModels() {
  const select = find("model");
  const chosen = select.value;
  const data = (await json("v1/models")).data.filter(({ task }) => task === "generate");
  select.replaceChildren(...data.map(({ id }) => make("option", { value: id, textContent: id })));
  if (data.some(({ id }) => id === chosen)) select.value = chosen;
  if (!data.length) select.append(make("option", { value: "", textContent: "no text model is ready" }));
  showButtons();
}

function bodyOf() {
  const system = find("system").value.trim();
  const body = {
    model: find("model").value,
    messages: system ? [{ role: "system", content: system }, ...messages] : [...messages],
    stream: true,
    stream_options: { include_usage: true },
  };
  for (const name of NUMBERS) {
    if (find(name).value !== "") body[name] = find(name).valueAsNumber;
  }
  if (find("stop_text").value) body.stop = [find("stop_text").value];
  return body;
}

function addMessage(role, content) {
  const transcript = find("transcript");
  const text = make("div", { className: "text", textContent: content });
  const note = make("div", { className: "note" });
  const element = make("article", { className: `message ${role}` }, make("h3", { textContent: role === "user" ? "You" : find("model").value }), text, note);
  transcript.append(element);
  transcript.scrollTop = transcript.scrollHeight;
  return { element, text, note };
}

// Text as it arrives, put on the page once a frame however fast it comes: laying out a long text takes a while.
class Paper {
  constructor(shown) {
    this.text = shown.text;
    this.reasoning = null;
    this.pending = { content: "", thought: "" };
    this.timer = 0;
  }

  add(content, thought) {
    this.pending.content += content ?? "";
    this.pending.thought += thought ?? "";
    this.timer ||= setTimeout(() => this.flush(), FRAME_MS);
  }

  flush() {
    clearTimeout(this.timer);
    this.timer = 0;
    const { content, thought } = this.pending;
    this.pending = { content: "", thought: "" };
    following(() => {
      if (thought) {
        this.reasoning ??= this.text.parentNode.insertBefore(make("div", { className: "reasoning" }), this.text);
        this.reasoning.append(thought);
      }
      if (content) this.text.append(content);
    });
  }
}

// Runs `change`, and follows the text down unless the reader has scrolled up.
function following(change) {
  const transcript = find("transcript");
  const follows = transcript.scrollHeight - transcript.scrollTop - transcript.clientHeight < 60;
  change();
  if (follows) transcript.scrollTop = transcript.scrollHeight;
}

async function answer() {
  running = new AbortController();
  showButtons();
  const shown = addMessage("assistant", "");
  shown.element.setAttribute("aria-busy", "true");
  find("chat-status").textContent = "The model is answering.";
  const figures = new Figures(performance.now());
  const paper = new Paper(shown);
  let ending = "";
  try {
    await read(await request("v1/chat/completions", { body: bodyOf(), signal: running.signal, accept: "text/event-stream" }), paper, figures);
  } catch (error) {
    if (error.name === "AbortError") ending = "stopped";
    else following(() => shown.text.after(make("p", { className: "error", textContent: error.message })));
    if (!(error instanceof ApiError) && error.name !== "AbortError") console.error(error);
  }
  running = null;
  paper.flush();
  shown.element.removeAttribute("aria-busy");
  if (shown.text.textContent) messages.push({ role: "assistant", content: shown.text.textContent });
  following(() => (shown.note.textContent = noteOf(figures, ending)));
  showFigures(figures);
  find("chat-status").textContent = ending === "stopped" ? "Stopped." : "The answer is complete.";
  showButtons();
}

async function read(response, paper, figures) {
  let done = false;
  for await (const data of events(response)) {
    if (data === "[DONE]") {
      done = true;
      break;
    }
    const chunk = JSON.parse(data);
    if (chunk.error) throw new ApiError(200, chunk.error.message);
    if (chunk.usage) figures.usage = chunk.usage;
    const choice = chunk.choices[0];
    if (!choice) continue;
    figures.finish = choice.finish_reason ?? figures.finish;
    const { content, reasoning_content: thought } = choice.delta;
    if (content || thought) {
      const isFirst = figures.first === null;
      figures.mark(performance.now());
      if (isFirst) showFigures(figures);
    }
    paper.add(content, thought);
  }
  if (!done) throw new ApiError(0, "the connection was lost before the answer was complete");
}

function noteOf(figures, ending) {
  const parts = [];
  if (figures.firstTokenMs !== null) parts.push(`first token ${milliseconds(figures.firstTokenMs)}`);
  if (figures.rate !== null) parts.push(`${perSecond(figures.rate)} tokens/s`);
  if (figures.usage) parts.push(`${figures.usage.prompt_tokens} + ${figures.usage.completion_tokens} tokens`);
  if (figures.cached) parts.push(`${figures.cached} cached`);
  if (ending || figures.finish) parts.push(ending || { stop: "complete", length: "cut at max tokens" }[figures.finish] || figures.finish);
  return parts.join(" · ");
}

function showFigures(figures) {
  find("figure-first").textContent = milliseconds(figures.firstTokenMs);
  find("figure-rate").textContent = perSecond(figures.rate);
  find("figure-prompt").textContent = figures.usage ? `${figures.usage.prompt_tokens}${figures.cached ? ` (${figures.cached} cached)` : ""}` : "–";
  find("figure-answer").textContent = figures.usage ? String(figures.usage.completion_tokens) : "–";
}

function showButtons() {
  const isRunning = running !== null;
  const focused = document.activeElement;
  find("send").hidden = isRunning;
  find("stop").hidden = !isRunning;
  find("send").disabled = !find("model").value;
  find("clear").disabled = isRunning || !find("transcript").childElementCount;
  find("again").disabled = isRunning || !messages.some(({ role }) => role === "user");
  // the button that had the focus may be gone: it must not fall back to the top of the page
  if (focused === find("send") && isRunning) find("stop").focus();
  if (focused === find("stop") && !isRunning) find("prompt").focus();
}

function send() {
  const prompt = find("prompt");
  if (running || !prompt.value.trim() || !find("model").value) return;
  messages.push({ role: "user", content: prompt.value });
  addMessage("user", prompt.value);
  prompt.value = "";
  answer();
}

function again() {
  if (running) return;
  const last = messages.findLastIndex(({ role }) => role === "user");
  messages.length = last + 1;
  const shown = [...find("transcript").children];
  const lastShown = shown.findLastIndex((element) => element.classList.contains("user"));
  shown.slice(lastShown + 1).forEach((element) => element.remove());
  answer();
}

export function start() {
  find("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    send();
  });
  find("prompt").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      send();
    }
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && !document.querySelector("dialog[open]")) running?.abort();
  });
  find("stop").addEventListener("click", () => running?.abort());
  find("again").addEventListener("click", again);
  find("clear").addEventListener("click", () => {
    messages.length = 0;
    find("transcript").replaceChildren();
    showFigures(new Figures(0));
    showButtons();
    find("prompt").focus();
  });
  showButtons();
}
