// What a screen reader, a keyboard and weak eyes need of a page, as a list of what is wrong with it.

// What a new width has set in motion comes to where it is going.
document.body.getBoundingClientRect();
for (const moving of document.getAnimations()) if (moving.effect.getComputedTiming().endTime < Infinity) moving.finish();
const wrong = [];
const seen = (e) => e.offsetParent !== null;
for (const img of document.querySelectorAll("img")) if (!img.alt) wrong.push("img without alt: " + img.src);
for (const e of document.querySelectorAll("[role=img]")) if (!e.getAttribute("aria-label")) wrong.push("role=img without a label");
for (const e of document.querySelectorAll("main select, main input, main button")) {
  const name = e.getAttribute("aria-label") || e.closest("label")?.textContent || e.textContent || e.title;
  if (seen(e) && !name.trim()) wrong.push("control without a name: " + e.outerHTML.slice(0, 80));
}
const ids = [...document.querySelectorAll("[id]")].map((e) => e.id);
for (const id of new Set(ids)) if (id && ids.filter((x) => x === id).length > 1 && !id.startsWith("__")) wrong.push("id twice: " + id);
if (!document.documentElement.lang) wrong.push("no language");
if (!document.title) wrong.push("no title");
if (document.documentElement.scrollWidth > window.innerWidth) wrong.push("wider than the window: " + document.documentElement.scrollWidth);
const light = ([r, g, b]) => {
  const [x, y, z] = [r, g, b].map((v) => { v /= 255; return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; });
  return 0.2126 * x + 0.7152 * y + 0.0722 * z;
};
const rgb = (text) => text.match(/[\d.]+/g).map(Number);
const known = new Map();
const behind = (e) => {
  if (!e) return [255, 255, 255];
  if (!known.has(e)) {
    const c = rgb(getComputedStyle(e).backgroundColor);
    known.set(e, c.length < 4 || c[3] > 0.9 ? c : behind(e.parentElement));
  }
  return known.get(e);
};
for (const e of document.querySelectorAll("main p, main li, main td, main th, main span, main label, main button, main output, main h1, main h2, main h3")) {
  if (!seen(e) || ![...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim()) || e.disabled || e.closest(".walk section:not(.now), svg, pre, .headerlink")) continue;
  const ink = rgb(getComputedStyle(e).color);
  if (ink.length > 3 && ink[3] < 1) continue;
  const [a, b] = [light(ink), light(behind(e))];
  const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  if (contrast < 4.5) wrong.push("contrast " + contrast.toFixed(1) + ": " + e.textContent.trim().slice(0, 40));
}
return [...new Set(wrong)];
