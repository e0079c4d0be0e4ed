// Sums, means, spreads and medians per segment of a column: sb_grpo/maths/segments.py.

export function segmentSum(values, segment, n) {
  const sums = new Float64Array(n);
  for (let i = 0; i < values.length; i++) sums[segment[i]] += values[i];
  return sums;
}

export function segmentCount(segment, n) {
  const counts = new Float64Array(n);
  for (const s of segment) counts[s] += 1;
  return counts;
}

export function segmentMean(values, segment, n) {
  const counts = segmentCount(segment, n);
  return segmentSum(values, segment, n).map((sum, k) => sum / Math.max(counts[k], 1));
}

export function segmentStd(values, segment, n) {
  const mean = segmentMean(values, segment, n);
  const squares = Float64Array.from(values, (x, i) => (x - mean[segment[i]]) ** 2);
  return segmentMean(squares, segment, n).map(Math.sqrt);
}

// The mean of the two middle values where their number is even.
export function median(values) {
  const sorted = [...values].sort((a, b) => a - b);
  const last = sorted.length - 1;
  return 0.5 * (sorted[Math.floor(last / 2)] + sorted[Math.ceil(last / 2)]);
}

export function segmentMedian(values, segment, n) {
  const parts = Array.from({ length: n }, () => []);
  values.forEach((x, i) => parts[segment[i]].push(x));
  return Float64Array.from(parts, (part) => (part.length ? median(part) : 0));
}

export function mean(values) {
  let sum = 0;
  for (const x of values) sum += x;
  return values.length ? sum / values.length : 0;
}

export function std(values) {
  const centre = mean(values);
  return Math.sqrt(mean(Float64Array.from(values, (x) => (x - centre) ** 2)));
}

// Linear interpolation between order statistics, as torch.quantile does it.
export function quantile(values, place) {
  const sorted = [...values].sort((a, b) => a - b);
  const rank = place * (sorted.length - 1);
  const low = Math.floor(rank);
  const [a, b, w] = [sorted[low], sorted[Math.min(low + 1, sorted.length - 1)], rank - low];
  return w < 0.5 ? a + w * (b - a) : b - (b - a) * (1 - w);
}

// The different labels in order, and the place of each label among them.
export function unique(labels) {
  const present = [...new Set(labels)].sort((a, b) => a - b);
  const place = new Map(present.map((label, i) => [label, i]));
  return { present, place: Int32Array.from(labels, (label) => place.get(label)) };
}
