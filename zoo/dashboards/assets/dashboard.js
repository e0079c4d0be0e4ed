// A run's own page: what its folder holds, as charts, tables and sentences.

import { colour, dash, draw, panel } from "./charts.js";
import { el, number, select } from "./dom.js";

const EVERY = 4000; // milliseconds between looks for newer data, where the page is served
const SHADE = "22"; // of a colour, for bands

// Charts over env steps: title, keys of the log, sentence. A key that ends in "/" stands for all that begin with it.
const CHARTS = [
  { id: "groups", title: "Groups", keys: ["group/n_groups", "rollout/pending_steps"], says: "Groups per rollout, and steps that wait for their group to complete." },
  { id: "spread", title: "Groups without spread", keys: ["group/frac_zero_std", "rollout/useful_fraction"], says: "Share of groups that teach nothing, and of steps that were used." },
  { id: "paired", title: "Paired groups", keys: ["group/paired_variance", "group/paired_coef", "group/paired_fraction"], says: "What pairing leaves of the variance; how much of the peers' mean it takes out; steps that have peers." },
  { id: "before", title: "Before normalisation", keys: ["group/return_std", "group/reward_std"], says: "Spread of returns and of step rewards, in the env's own units." },
  { id: "weights", title: "Share of the loss", keys: ["share/"], says: "How group weights divided the loss.", stacked: true },
  { id: "tasks", title: "Returns by task", keys: ["task/"], says: "Mean return of the episodes that ended in a rollout." },
  { id: "update", title: "Updates", keys: ["train/clip_fraction", "train/approx_kl", "train/conflict_rate"], says: "Clipped steps, KL between old and new policy, pairs of tasks in conflict." },
  { id: "policy", title: "Exploration", keys: ["train/mean_entropy", "train/std"], says: "Entropy of the policy, and its standard deviation where actions are real numbers." },
  { id: "explained", title: "Baseline", keys: ["train/explained_variance"], says: "Explained variance of the baseline: 1 is perfect, 0 no better than a constant. Cut at -1.", least: -1 },
  { id: "mismatch", title: "Starts that did not match", keys: ["group/start_mismatch", "rollout/interruptions"], says: "Members that did not start where their group did, and interruptions by others; both should stay 0." },
  { id: "health", title: "Health", keys: ["health/"], says: "1 while a rule is broken." },
  { id: "speed", title: "Speed", keys: ["time/fps"], says: "Env steps per second, updates included." },
];

const host = document.querySelector("#grpo-page");
let data = JSON.parse(document.querySelector("#data").textContent);
let chosen = 0;

const keysOf = (log, keys) => keys.flatMap((key) => (key.endsWith("/") ? Object.keys(log).filter((name) => name.startsWith(key)) : key in log ? [key] : []));
const whole = (x) => (x === null || x === undefined ? "-" : Math.round(x).toLocaleString("en"));

function band(curve, k, name) {
  const common = { x: curve.steps, mode: "lines", hoverinfo: "skip", showlegend: false };
  return [
    { ...common, y: curve.high, line: { width: 0 } },
    { ...common, y: curve.low, line: { width: 0 }, fill: "tonexty", fillcolor: colour(k) + SHADE },
    { x: curve.steps, y: curve.mean, mode: curve.steps.length < 40 ? "lines+markers" : "lines", name, line: { color: colour(k), width: 2, dash: dash(k) } },
  ];
}

function returns(run) {
  const figure = panel("Returns", { id: "returns", wide: true });
  const traces = [...(run.episodes.n ? band(run.episodes, 0, "training") : []), ...(run.evaluations ? band(run.evaluations, 1, "evaluation") : [])];
  const says = run.episodes.n
    ? `${whole(run.episodes.n)} training episodes: mean, and where the middle 80 % lie.${run.evaluations ? " Evaluations: mean, lowest and highest episode." : " There were no evaluations."}`
    : "No episode has ended yet.";
  return [figure, () => draw(figure, traces, { height: 340, showlegend: true, xaxis: { title: "env steps" }, yaxis: { title: "return of an episode" } }, says)];
}

const isFlat = (run, name) => run.log[name].values.length > 1 && new Set(run.log[name].values).size === 1;

// Lines that never moved, as one sentence.
function unchanged(run) {
  const keys = CHARTS.filter(({ stacked }) => !stacked).flatMap(({ keys }) => keysOf(run.log, keys)).filter((name) => isFlat(run, name));
  if (!keys.length) return null;
  const says = keys.map((name) => `${name} ${number(run.log[name].values[0])}`).join(", ");
  return el("figure", { class: "panel wide", id: "unchanged" }, el("figcaption", {}, "Unchanged so far"), el("p", { class: "note" }, `${says}.`));
}

function logged(run, { id, title, keys, says, stacked, least = -Infinity }) {
  const names = keysOf(run.log, keys);
  if (!names.length) return null;
  const flat = stacked ? [] : names.filter((name) => isFlat(run, name));
  if (flat.length === names.length) return null;
  const figure = panel(title, { id });
  const traces = names.filter((name) => !flat.includes(name)).map((name, k) => ({
    x: run.log[name].steps, y: run.log[name].values.map((x) => Math.max(x, least)), name, mode: run.log[name].steps.length < 40 ? "lines+markers" : "lines",
    line: { color: colour(k), width: 2, dash: ["solid", "dash", "dot"][k % 3] }, ...(stacked ? { stackgroup: "one" } : {}),
  }));
  return [figure, () => draw(figure, traces, { height: 260 + 12 * traces.length, margin: { l: 48, r: 12, t: 8, b: 40 + 12 * traces.length }, showlegend: true, xaxis: { title: "env steps" } }, says)];
}

function advantages(run) {
  if (!run.advantages) return null;
  const figure = panel("Advantages, after normalisation", { id: "advantages" });
  const { steps, values } = run.advantages;
  const line = (y, extra) => ({ x: steps, y, mode: "lines", line: { color: colour(0), width: 0 }, showlegend: false, ...extra });
  const traces = [
    line(values[0], {}), line(values[4], { fill: "tonexty", fillcolor: colour(0) + SHADE }),
    line(values[1], {}), line(values[3], { fill: "tonexty", fillcolor: colour(0) + "55" }),
    line(values[2], { line: { color: colour(0), width: 2 } }),
  ];
  return [figure, () => draw(figure, traces, { xaxis: { title: "env steps" }, yaxis: { title: "advantage" } }, "Median, the middle half (dark), and the middle 90 % (light) of a rollout's steps.")];
}

function cards(run) {
  const { final, episodes } = run;
  const steps = final.env_steps ?? episodes.steps.at(-1) ?? 0;
  const seconds = final.wall_time_s ?? episodes.seconds.at(-1) ?? 0;
  const shown = [
    [run.state, "state"], [`${run.algo} ${run.env}`, "algorithm and env"],
    [`${whole(steps)}${run.planned ? ` of ${whole(Number(run.planned))}` : ""}`, "env steps"],
    [final.mean_return != null ? `${number(final.mean_return)} ± ${number(final.std_return)}` : number(episodes.mean.at(-1)), final.mean_return != null ? "final evaluation" : "last training returns"],
    [`${whole(seconds)} s`, "time"],
  ];
  return el("div", { class: "cards" }, ...shown.map(([value, name]) => el("div", { class: "card" }, el("b", {}, String(value)), el("span", {}, name))));
}

function messages(run) {
  return [...run.messages.map((text) => el("p", { class: "alert" }, text)), ...run.notes.map((text) => el("p", { class: "word" }, text))];
}

function tables(run) {
  const rows = Object.entries(run.settings).map(([name, value]) => el("tr", {}, el("th", { scope: "row" }, name), el("td", {}, value)));
  const settings = el("figure", { class: "panel", id: "settings" }, el("figcaption", {}, "Settings"), rows.length ? el("table", {}, el("tbody", {}, ...rows)) : el("p", { class: "note" }, "The folder holds no settings."));
  const links = run.files.map((file) => el("li", {}, LIVE ? file : el("a", { href: file.split("/").map(encodeURIComponent).join("/") }, file)));
  return [settings, el("figure", { class: "panel", id: "files" }, el("figcaption", {}, "Files"), el("ul", {}, ...links))];
}

function compared() {
  if (data.runs.length < 2) return null;
  const figure = panel("All runs", { id: "compared", wide: true });
  const traces = data.runs.slice(0, 16).map((run, k) => ({ x: run.episodes.steps, y: run.episodes.mean, name: run.name, mode: "lines", line: { color: colour(k), dash: dash(k), width: k === chosen ? 3 : 1.5 } }));
  return [figure, () => draw(figure, traces, { height: 320, showlegend: true, xaxis: { title: "env steps" }, yaxis: { title: "return, training" } }, `The newest ${traces.length} of ${data.runs.length} runs.`)];
}

// One chart after another, so that the page can be read and used while it draws.
function drawInTurn(charts) {
  const [first, ...rest] = charts.filter(([figure]) => figure.isConnected);
  if (!first) return;
  first[1]();
  setTimeout(() => drawInTurn(rest));
}

function render(atOnce = false) {
  chosen = Math.min(chosen, data.runs.length - 1);
  const run = data.runs[chosen];
  const dark = document.body.dataset.mdColorScheme === "slate";
  const theme = el("button", { type: "button", name: "theme", onclick: () => { document.body.dataset.mdColorScheme = dark ? "default" : "slate"; render(); } }, dark ? "Light colours" : "Dark colours");
  const picker = data.runs.length > 1 ? select("run", "run", data.runs.map((r, k) => [k, r.name]), chosen, (k) => { chosen = Number(k); render(); }) : null;
  const charts = [compared(), returns(run), advantages(run), ...CHARTS.map((chart) => logged(run, chart))].filter(Boolean);
  host.replaceChildren(
    el("div", { class: "head" }, el("h1", {}, run.name), el("div", { class: "bar" }, picker, theme)),
    cards(run), ...messages(run),
    el("div", { class: "grid" }, ...charts.map(([figure]) => figure), ...[unchanged(run)].filter(Boolean), ...tables(run)),
  );
  if (atOnce) for (const [, show] of charts) show();
  else drawInTurn(charts);
}

async function refresh() {
  try {
    const response = await fetch("data.json");
    const text = await response.text();
    if (text === JSON.stringify(data)) return;
    const newer = JSON.parse(text);
    if (JSON.stringify(newer) === JSON.stringify(data)) return;
    data = newer;
    const [place, focused] = [window.scrollY, document.activeElement?.name];
    render(true); // the page keeps its height, and the reader the place
    window.scrollTo(0, place);
    if (focused) document.querySelector(`[name="${focused}"]`)?.focus();
  } catch {
    clearInterval(timer);
    host.prepend(el("p", { class: "alert", role: "alert", id: "gone" }, "The server has stopped; this is the last that it said."));
  }
}

document.body.dataset.mdColorScheme = window.matchMedia("(prefers-color-scheme: dark)").matches ? "slate" : "default";
render();
const timer = LIVE ? setInterval(refresh, EVERY) : null;
window.dashboard = { get data() { return data; } };
