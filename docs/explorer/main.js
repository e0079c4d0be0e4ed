// The explorer: one rollout, one set of settings, five views of them.

import { advantagesView } from "./advantages.js";
import { el, radios, checkbox, select, slider } from "./dom.js";
import { GROUPINGS, analyse } from "./grouping.js";
import { groupsView } from "./groups.js";
import { BadRecording, RECORDINGS, parse } from "./recording.js";
import { sensitivityView } from "./sensitivity.js";
import { tasksView } from "./tasks.js";
import { walkthroughView } from "./walkthrough.js";
import { impact, kindsOf } from "./weights.js";

const VIEWS = { groups: ["Groups", groupsView], advantages: ["Advantages", advantagesView], tasks: ["Weights and tasks", tasksView], sensitivity: ["Sensitivity", sensitivityView], walkthrough: ["Walkthrough", walkthroughView] };
const DEFAULTS = {
  grouping: "seed", n: 4, estimator: "state", baseline: "mean", normalize: "group", ended: "zero", paired: false,
  gamma: 0.99, lambda: 0.95, weights: "none", temperature: 0.5, floor: 0.3, features: ["return", "length"],
};

const app = {
  rollout: null, settings: { ...DEFAULTS }, selected: { episode: 0, step: 0 }, view: "groups", recording: "cartpole",
  calm: window.matchMedia("(prefers-reduced-motion: reduce)").matches,
  set(changes) { Object.assign(app.settings, changes); update(); },
};

const host = document.querySelector("#grpo-page");
const alert = el("p", { class: "alert hidden", role: "alert", id: "alert" });
const source = el("div", { class: "bar" });
const tabs = el("div", { role: "tablist", "aria-label": "Views" });
const controls = el("div", { class: "bar controls", id: "settings" });
const panels = el("div");
const views = {};

function say(sentence) {
  alert.textContent = sentence;
  alert.classList.toggle("hidden", !sentence);
}

function use(text, name) {
  try {
    app.rollout = parse(text, name);
    app.selected = { episode: 0, step: 0 };
    app.settings.gamma = app.rollout.settings.gamma;
    app.settings.lambda = app.rollout.settings.gae_lambda;
    if (!app.rollout.tasks.length && ["task", "hierarchical"].includes(app.settings.grouping)) app.settings.grouping = "seed";
    app.settings.features = DEFAULTS.features;
    say("");
    update();
    return true;
  } catch (error) {
    if (!(error instanceof BadRecording)) throw error;
    say(error.message);
    return false;
  }
}

async function open(id) {
  const known = RECORDINGS.find((recording) => recording.id === id) ?? RECORDINGS[0];
  app.recording = known.id;
  const response = await fetch(new URL(known.file, import.meta.url));
  if (!response.ok) { say(`${known.file} is missing on this site. Build it again with bash scripts/docs.sh.`); return; }
  use(await response.text(), known.file);
}

function buildSource() {
  const file = el("input", { type: "file", name: "file", accept: ".json,application/json" });
  file.addEventListener("change", async () => {
    if (!file.files[0]) return;
    const shown = use(await file.files[0].text(), file.files[0].name);
    // None of the list is shown then: any of them can be chosen again.
    if (shown) source.querySelector("[name=recording]").selectedIndex = -1;
  });
  source.replaceChildren(
    select("recording", "recording", RECORDINGS.map(({ id, name }) => [id, name]), app.recording, (id) => open(id)),
    el("label", { class: "control" }, el("span", {}, "Open a recording"), file),
  );
}

function buildTabs() {
  for (const [id, [name]] of Object.entries(VIEWS)) {
    const tab = el("button", { type: "button", role: "tab", id: `tab-${id}`, "aria-controls": `view-${id}`, onclick: () => show(id) }, name);
    tab.addEventListener("keydown", (event) => {
      const ids = Object.keys(VIEWS);
      const move = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!move) return;
      const next = ids[(ids.indexOf(id) + move + ids.length) % ids.length];
      show(next);
      document.querySelector(`#tab-${next}`).focus();
    });
    tabs.append(tab);
    panels.append(el("div", { role: "tabpanel", id: `view-${id}`, "aria-labelledby": `tab-${id}`, class: "hidden" }));
  }
}

function buildControls() {
  const s = app.settings;
  const set = (name) => (value) => app.set({ [name]: value });
  const tasks = app.rollout.tasks.length > 0;
  const advantages = app.view === "advantages";
  const grouping = GROUPINGS.filter((name) => tasks || !["task", "hierarchical"].includes(name));
  const sized = ["difficulty", "length", "auto"].includes(s.grouping);
  const parts = [select("grouping", "grouping", grouping, s.grouping, set("grouping"))];
  if (sized) parts.push(slider("n", "groups", { min: 2, max: 8, step: 1 }, s.n, set("n")));
  if (advantages) {
    parts.push(select("estimator", "estimator", ["outcome", "process", "step", "state"], s.estimator, set("estimator")));
    if (s.estimator === "state") parts.push(slider("lambda", "lambda", { min: 0, max: 1, step: 0.01 }, s.lambda, set("lambda")));
    else parts.push(select("baseline", "baseline", [["mean", "mean"], ["leave_one_out", "leave one out"], ["median", "median"], ["global", "global"]], s.baseline, set("baseline")));
    if (s.estimator === "step") parts.push(select("ended", "members that ended", [["zero", "count as 0"], ["drop", "are left out"]], s.ended, set("ended")));
    parts.push(slider("gamma", "gamma", { min: 0.8, max: 1, step: 0.001 }, s.gamma, set("gamma")));
    parts.push(radios("normalize", "divide by the spread of", [["group", "group"], ["batch", "rollout"], ["none", "nothing"]], s.normalize, set("normalize")));
    if (s.estimator === "state") parts.push(checkbox("paired", "take out shared noise", s.paired, set("paired")));
  }
  const kinds = kindsOf(app.rollout, s);
  parts.push(radios("weights", "group weights", kinds.map((kind) => [kind, kind === "none" ? "by size" : kind]), s.weights, set("weights")));
  if (s.weights === "performance") parts.push(slider("temperature", "temperature", { min: 0.1, max: 2, step: 0.1 }, s.temperature, set("temperature")));
  if (s.weights === "adaptive") parts.push(slider("floor", "floor", { min: 0.05, max: 1, step: 0.05 }, s.floor, set("floor")));
  const focused = document.activeElement?.name;
  const value = document.activeElement?.value;
  controls.replaceChildren(...parts);
  // Controls are made anew with every change: the keyboard stays where it was.
  const again = [...controls.querySelectorAll("[name]")].find((input) => input.name === focused && (input.type !== "radio" || input.value === value));
  again?.focus();
}

function render() {
  for (const view of Object.values(views)) view.stop();
  const { root, render: renderView } = (views[app.view] ??= VIEWS[app.view][1](app));
  const place = document.querySelector(`#view-${app.view}`);
  if (!place.contains(root)) place.replaceChildren(root);
  return renderView();
}

function update() {
  const uses = ["groups", "advantages"].includes(app.view);
  if (app.rollout && !kindsOf(app.rollout, app.settings).includes(app.settings.weights)) app.settings.weights = "none";
  controls.classList.toggle("hidden", !uses || !app.rollout);
  source.classList.toggle("hidden", ["sensitivity", "walkthrough"].includes(app.view));
  if (!app.rollout) return;
  if (uses && !(controls.contains(document.activeElement) && document.activeElement.type === "range")) buildControls();
  render();
  remember();
}

function show(id) {
  app.view = id;
  for (const name of Object.keys(VIEWS)) {
    const tab = document.querySelector(`#tab-${name}`);
    tab.setAttribute("aria-selected", String(name === id));
    tab.tabIndex = name === id ? 0 : -1;
    document.querySelector(`#view-${name}`).classList.toggle("hidden", name !== id);
  }
  document.querySelector(`#tab-${id}`).scrollIntoView({ block: "nearest", inline: "nearest" }); // a narrow screen shows some of them
  document.activeElement?.blur?.();
  update();
}

// The address keeps the view and the settings: a link shows another reader the same.
function remember() {
  const { features, ...settings } = app.settings;
  const changed = Object.entries(settings).filter(([name, value]) => value !== DEFAULTS[name]);
  history.replaceState(null, "", `#${new URLSearchParams({ view: app.view, recording: app.recording, ...Object.fromEntries(changed) })}`);
}

// Without an address of its own, the page shows what groups are for: noise that members share, taken out.
function recall() {
  if (!location.hash) {
    Object.assign(app, { view: "advantages", recording: "loadbalancing" });
    app.settings.paired = true;
  }
  const given = new URLSearchParams(location.hash.slice(1));
  for (const [name, value] of given) {
    if (name in DEFAULTS) app.settings[name] = { number: Number, boolean: (x) => x === "true" }[typeof DEFAULTS[name]]?.(value) ?? value;
  }
  if (given.get("view") in VIEWS) app.view = given.get("view");
  app.recording = given.get("recording") ?? app.recording;
}

// For tests, and for readers with a console: the numbers behind the charts.
window.explorer = {
  get ready() { return app.rollout !== null; },
  app,
  impact: (settings) => {
    const all = { ...app.settings, ...settings };
    const { wanted, weights, share, clipped, norm } = impact(analyse(app.rollout, all), all);
    return [wanted, weights, share, clipped, norm].map((column) => Array.from(column));
  },
  advantages: (settings) => Array.from(analyse(app.rollout, { ...app.settings, ...settings }).advantages),
};

recall();
host.replaceChildren(source, alert, tabs, controls, panels);
buildSource();
buildTabs();
new MutationObserver(() => app.rollout && render()).observe(document.body, { attributeFilter: ["data-md-color-scheme"] });
show(app.view);
await open(app.recording);
