// The repository: every model's state, load and unload, and a form for any model of KServe v2.

import { events, json, request } from "./api.js";
import { find, make } from "./dom.js";
import { milliseconds } from "./figures.js";
import { canBeJson, shown, startData, startShape, tensor } from "./tensors.js";

const MOVING = ["LOADING", "UNLOADING"];
const POLL_MS = 1000;
let poll = 0;
let tried = null; // {path, metadata, isDecoupled}

const encoded = (name) => encodeURIComponent(name);

export async function refresh() {
  clearTimeout(poll);
  let index;
  try {
    index = await json("v2/repository/index", { body: {} });
  } catch (error) {
    return say("repository-status", error.message, true);
  }
  index.sort((one, other) => one.name.localeCompare(other.name) || Number(one.version ?? 0) - Number(other.version ?? 0));
  const focus = document.activeElement?.dataset?.action;
  find("repository").replaceChildren(...index.map(row));
  if (focus) document.querySelector(`[data-action="${CSS.escape(focus)}"]`)?.focus();
  const ready = index.filter(({ state }) => state === "READY").length;
  say("repository-status", `${index.length} ${index.length === 1 ? "entry" : "entries"}, ${ready} ready`);
  if (index.some(({ state }) => MOVING.includes(state)) && !find("models-view").hidden) poll = setTimeout(refresh, POLL_MS);
}

function row({ name, version, state, reason }) {
  const isReady = state === "READY";
  const actions = [button("Load", name, version, () => change(name, "load"), isReady ? "Reload" : "Load")];
  if (isReady) {
    actions.push(button("Unload", name, version, () => change(name, "unload")));
    actions.push(button("Try", name, version, () => open(name, version)));
  }
  return make(
    "tr",
    {},
    make("th", { scope: "row", textContent: name }),
    make("td", { textContent: version || "–" }),
    make("td", {}, make("div", { className: `state ${state ?? ""}`, textContent: state || "not loaded" }), make("div", { className: "reason", textContent: reason ?? "" })),
    make("td", { className: "actions" }, ...actions),
  );
}

function button(action, name, version, act, text = action) {
  const element = make("button", { type: "button", textContent: text, ariaLabel: `${text} ${name}${version ? ` version ${version}` : ""}` });
  element.dataset.action = `${action} ${name} ${version ?? ""}`;
  element.addEventListener("click", act);
  return element;
}

async function change(name, verb) {
  say("repository-status", `${verb === "load" ? "Loading" : "Unloading"} ${name}…`);
  // the list tells of the way there, too
  poll = setTimeout(refresh, POLL_MS / 4);
  try {
    await json(`v2/repository/models/${encoded(name)}/${verb}`, { body: {} });
    await refresh();
    say("repository-status", `${name} is ${verb}ed.`);
    document.dispatchEvent(new CustomEvent("models-changed"));
  } catch (error) {
    await refresh();
    say("repository-status", error.message, true);
  }
}

async function open(name, version) {
  const path = `v2/models/${encoded(name)}${version ? `/versions/${encoded(version)}` : ""}`;
  let metadata;
  let config;
  try {
    [metadata, config] = await Promise.all([json(path), json(`${path}/config`)]);
  } catch (error) {
    return say("repository-status", error.message, true);
  }
  tried = { path, metadata, isDecoupled: config.model_transaction_policy?.decoupled ?? false };
  const optional = new Set((config.input ?? []).filter((input) => input.optional).map((input) => input.name));
  find("try").hidden = false;
  find("try-title").textContent = `Try ${name}${version ? `, version ${version}` : ""}`;
  find("try-about").textContent = `${metadata.platform || config.backend || "unknown platform"}${tried.isDecoupled ? ", any number of answers" : ""} · gives ${metadata.outputs.map(inWords).join(", ")}`;
  const fields = metadata.inputs.map((spec, position) => inputFields(spec, position, optional.has(spec.name)));
  find("try-inputs").replaceChildren(...fields.filter((_, position) => !optional.has(metadata.inputs[position].name)));
  find("try-optional-inputs").replaceChildren(...fields.filter((_, position) => optional.has(metadata.inputs[position].name)));
  find("try-optional").hidden = !optional.size;
  find("try-optional").open = false;
  find("try-optional").firstElementChild.textContent = `Optional inputs (${optional.size})`;
  find("try-outputs").replaceChildren();
  say("try-status", "");
  find("run").disabled = !metadata.inputs.every((spec) => canBeJson(spec) || optional.has(spec.name));
  if (find("run").disabled) say("try-status", "FP16 and BF16 have no form in JSON: use a client that sends binary data.", true);
  find("try-title").focus();
}

const inWords = ({ name, datatype, shape }) => `${name} ${datatype} [${shape.join(", ")}]`;

function inputFields(spec, position, isOptional) {
  const shape = make("input", { id: `shape-${position}`, value: startShape(spec).join(", "), spellcheck: false });
  const data = make("textarea", { id: `data-${position}`, rows: isOptional ? 1 : 2, spellcheck: false, value: isOptional ? "" : startData(spec) });
  const hint = isOptional ? "Data, left out when empty" : "Data: a JSON list, or one value for all";
  return make(
    "fieldset",
    { className: "tensor" },
    make("legend", { textContent: inWords(spec) }),
    make("div", { className: "field" }, make("label", { htmlFor: shape.id, textContent: "Shape" }), shape),
    make("div", { className: "field" }, make("label", { htmlFor: data.id, textContent: hint }), data),
  );
}

function inputs() {
  return tried.metadata.inputs.flatMap((spec, position) => {
    const data = find(`data-${position}`).value.trim();
    return data ? [tensor(spec, find(`shape-${position}`).value, data)] : [];
  });
}

async function run() {
  const outputs = find("try-outputs");
  outputs.replaceChildren();
  find("run").disabled = true;
  const started = performance.now();
  let count = 0;
  try {
    const body = { inputs: inputs() };
    const show = (answer) => outputs.append(...answer.outputs.map((output) => outputBlock(output, tried.isDecoupled ? ++count : 0)));
    if (tried.isDecoupled) {
      for await (const data of events(await request(`${tried.path}/infer`, { body, accept: "text/event-stream" }))) {
        const answer = JSON.parse(data);
        if (answer.error) throw new Error(answer.error);
        show(answer);
      }
    } else {
      show(await json(`${tried.path}/infer`, { body }));
    }
    say("try-status", `${tried.isDecoupled ? `${count} ${count === 1 ? "output" : "outputs"}` : "answered"} in ${milliseconds(performance.now() - started)}`);
  } catch (error) {
    say("try-status", error.message, true);
  }
  find("run").disabled = false;
}

function outputBlock(output, number) {
  return make("div", {}, make("h3", { textContent: `${number ? `${number}. ` : ""}${inWords(output)}` }), make("pre", { textContent: shown(output), tabIndex: 0 }));
}

function say(id, text, isError = false) {
  find(id).textContent = text;
  find(id).classList.toggle("error", isError);
}

export function start() {
  find("refresh").addEventListener("click", refresh);
  find("load-form").addEventListener("submit", (event) => {
    event.preventDefault();
    change(find("load-name").value.trim(), "load");
  });
  find("try-form").addEventListener("submit", (event) => {
    event.preventDefault();
    run();
  });
}
