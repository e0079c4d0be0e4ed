// The group baseline and the paired one, derived in eight steps beside a picture that follows.

import { colour } from "./charts.js";
import { el, svg } from "./dom.js";

// Luck of three seeds, and what four members of each added by their actions.
const LUCK = [2.2, -1.6, 0.4];
const OWN = [[0.5, -0.3, 0.2, -0.4], [-0.2, 0.6, -0.5, 0.1], [0.3, -0.4, 0.5, -0.4]];

const STEPS = [
  ["An episode's return", "A policy plays, and each episode ends with a return R. Some episodes did well, some badly. Which actions deserve the credit?"],
  ["The policy gradient", "Each action's log-probability is pushed in proportion to R. That is right in the mean, but the dots lie far from 0: the pushes are large and mostly cancel."],
  ["Any baseline is allowed", "Subtract a number b that does not depend on the action: E[s b] = b E[s] = 0, as scores have mean 0. The gradient stays, its variance falls."],
  ["The group as a baseline", "Start several episodes in one state and subtract their mean: A = R - mean(R). No critic has to be learnt. Divide by the spread, and rewards of any scale look alike."],
  ["Luck", "One seed's arrivals were kind, another's were not. All members of a group live through the same luck. Over all groups together, luck decides who looks good."],
  ["Residuals of a state baseline", "A fit to earlier episodes says what a state is worth, step by step. It cannot know the luck that is still to come: residuals of one seed lie together, far from 0."],
  ["The peers know", "What the other members got at the same step shows the luck. Their mean does not depend on this member's action, given the seed: so it may be subtracted. The member itself stays out of it."],
  ["How much of it", "Subtract c times the peers' mean. With a correlation r between members and n peers, c = r / (r + (1 - r) / n) leaves the least variance. Where nothing is in common, c is 0."],
];

// Place of each member (a number on a line) at each step.
function placesOf(step) {
  const returns = OWN.map((members, g) => members.map((x) => 4 + LUCK[g] + x));
  const all = returns.flat();
  const mean = all.reduce((a, b) => a + b, 0) / all.length;
  const n = OWN[0].length - 1;
  const [r, total] = [0.93, (values) => values.reduce((a, b) => a + b, 0)];
  const c = r / (r + (1 - r) / n);
  return returns.map((members, g) => members.map((x, i) => {
    const luck = LUCK[g] + OWN[g][i];
    const peers = (total(OWN[g]) - OWN[g][i]) / n + LUCK[g];
    if (step < 2) return x;
    if (step === 2) return x - mean;
    if (step === 3) return x - total(members) / members.length;
    if (step < 6) return luck;
    return step === 6 ? luck - 0.5 * peers : luck - c * peers;
  }));
}

export function walkthroughView(app) {
  const [width, height] = [440, 300];
  const x = (value) => 150 + value * 38;
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, class: "stage", role: "img" });
  const axis = svg("line", { y1: 30, y2: height - 40, stroke: "currentColor", "stroke-dasharray": "4 4", x1: x(0), x2: x(0) });
  const zero = svg("text", { x: x(0), y: height - 22, "text-anchor": "middle", "font-size": 12, fill: "currentColor" });
  zero.textContent = "0";
  const caption = svg("text", { x: 12, y: 18, "font-size": 13, fill: "currentColor" });
  picture.append(axis, zero, caption);
  const bands = OWN.map((_, g) => svg("rect", { y: 42 + g * 72, height: 56, rx: 6, fill: colour(g), opacity: 0 }));
  const dots = OWN.map((members, g) => members.map((_, i) => svg("circle", { r: 7, cy: 56 + g * 72 + i * 9.5, fill: colour(g), "fill-opacity": 0.85 })));
  const labels = OWN.map((_, g) => {
    const text = svg("text", { x: 12, y: 74 + g * 72, "font-size": 12, fill: "currentColor" });
    text.textContent = `seed ${g + 1}`;
    return text;
  });
  picture.append(...bands, ...dots.flat(), ...labels);
  const CAPTIONS = ["returns R", "returns R, as pushes", "R minus one number for all", "R minus the mean of its group", "what is luck, what is own", "residuals of the state baseline", "half of the peers' mean taken out", "c times the peers' mean taken out"];

  const sections = STEPS.map(([title, text], k) => el("section", { tabindex: "0", "data-step": String(k) }, el("h3", {}, `${k + 1}. ${title}`), el("p", {}, text)));
  const back = el("button", { type: "button", name: "back", onclick: () => go(now - 1) }, "Back");
  const next = el("button", { type: "button", name: "next", onclick: () => go(now + 1) }, "Next");
  const root = el("div", { class: "walk" },
    el("div", {}, ...sections),
    el("div", { class: "picture" }, picture, el("div", { class: "bar" }, back, next)));
  let now = 0;
  let heldUntil = 0; // while a button scrolls the page, it has chosen the step

  function show(step) {
    now = step;
    const places = placesOf(step);
    places.forEach((members, g) => {
      members.forEach((value, i) => dots[g][i].setAttribute("cx", x(value)));
      const [low, high] = [Math.min(...members), Math.max(...members)];
      bands[g].setAttribute("x", x(low) - 12);
      bands[g].setAttribute("width", x(high) - x(low) + 24);
      bands[g].setAttribute("opacity", step >= 3 ? 0.15 : 0);
    });
    const values = places.flat();
    const centre = values.reduce((a, b) => a + b, 0) / values.length;
    const size = Math.sqrt(values.reduce((a, b) => a + b * b, 0) / values.length);
    caption.textContent = `${CAPTIONS[step]}: size ${size.toFixed(2)}`;
    picture.setAttribute("aria-label", `Step ${step + 1}: ${CAPTIONS[step]}. Twelve episodes of three seeds; mean ${centre.toFixed(2)}, root mean square ${size.toFixed(2)}.`);
    picture.dataset.step = step;
    sections.forEach((section, k) => section.classList.toggle("now", k === step));
    back.disabled = step === 0;
    next.disabled = step === STEPS.length - 1;
  }

  function go(step) {
    if (step < 0 || step >= STEPS.length) return;
    heldUntil = performance.now() + 1200;
    sections[step].scrollIntoView({ behavior: app.calm ? "auto" : "smooth", block: "start" });
    show(step);
  }

  // The section whose heading is nearest to where one reads is the one to show; on a phone the picture is above it.
  function follow() {
    if (!document.contains(root) || root.offsetParent === null || performance.now() < heldUntil) return;
    const line = window.innerHeight * (window.innerWidth <= 720 ? 0.55 : 0.4);
    const distance = (section) => Math.abs(section.firstChild.getBoundingClientRect().top - line);
    const nearest = sections.reduce((best, section) => (distance(section) < distance(best) ? section : best));
    const step = Number(nearest.dataset.step);
    if (step !== now) show(step);
  }
  window.addEventListener("scroll", follow, { passive: true });
  sections.forEach((section, k) => section.addEventListener("focus", () => show(k)));

  return { root, render: () => show(now), stop() {} };
}
