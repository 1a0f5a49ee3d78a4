// Metrics in the text format of Prometheus. Pure.

export interface Sample {
  name: string;
  labels: Record<string, string>;
  value: number;
}

/** Parses samples. Comments and malformed lines are skipped. */
export function parseMetrics(text: string): Sample[] {
  const samples: Sample[] = [];
  for (const line of text.split('\n')) {
    const parts = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)/.exec(line);
    if (!parts || line.startsWith('#')) continue;
    const value = parts[3] === '+Inf' ? Infinity : Number(parts[3]);
    if (Number.isNaN(value)) continue;
    const labels: Record<string, string> = {};
    for (const [, key, content] of (parts[2] ?? '').matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)) {
      labels[key!] = content!.replace(/\\(.)/g, (_, char: string) => (char === 'n' ? '\n' : char));
    }
    samples.push({ name: parts[1]!, labels, value });
  }
  return samples;
}

/** Returns the sum of a metric over all labels, or undefined if it does not occur. */
export function total(samples: Sample[], name: string, filter: (labels: Record<string, string>) => boolean = () => true): number | undefined {
  let sum: number | undefined;
  for (const sample of samples) {
    if (sample.name === name && filter(sample.labels)) sum = (sum ?? 0) + sample.value;
  }
  return sum;
}

/** Returns the sums of a metric by a key of its labels. */
export function totals(samples: Sample[], name: string, key: (labels: Record<string, string>) => string): Map<string, number> {
  const sums = new Map<string, number>();
  for (const sample of samples) {
    if (sample.name !== name) continue;
    const of = key(sample.labels);
    sums.set(of, (sums.get(of) ?? 0) + sample.value);
  }
  return sums;
}

/** Counters by key at a time in seconds. */
export interface Counters {
  tick: number;
  counts: ReadonlyMap<string, number>;
}

const MINUTE_SECONDS = 60;

/** Returns the increase in the last minute, or since the first reading if it is younger. Unknown after a restart. */
export function lastMinute(readings: readonly Counters[], key: string): number | undefined {
  const last = readings[readings.length - 1];
  const first = last && readings.find(({ tick }) => tick >= last.tick - MINUTE_SECONDS);
  if (!last || !first || first === last) return undefined;
  // A counter appears with its first increment.
  const added = (last.counts.get(key) ?? 0) - (first.counts.get(key) ?? 0);
  return added < 0 ? undefined : added;
}

/** Cumulative counts of a histogram by upper bound, ascending, over all other labels. */
export type Buckets = [bound: number, count: number][];

export function buckets(samples: Sample[], name: string): Buckets {
  const byBound = new Map<number, number>();
  for (const sample of samples) {
    if (sample.name !== `${name}_bucket`) continue;
    const bound = sample.labels.le === '+Inf' ? Infinity : Number(sample.labels.le);
    byBound.set(bound, (byBound.get(bound) ?? 0) + sample.value);
  }
  return [...byBound].sort((a, b) => a[0] - b[0]);
}

/** Returns the counts that were added since an earlier reading. A restarted process starts at 0. */
export function added(now: Buckets, before: Buckets): Buckets {
  const earlier = new Map(before);
  const restarted = now.some(([bound, count]) => count < (earlier.get(bound) ?? 0));
  return now.map(([bound, count]) => [bound, restarted ? count : count - (earlier.get(bound) ?? 0)]);
}

/** Returns a quantile by linear interpolation in its bucket, or undefined without values. */
export function quantile(cumulative: Buckets, share: number): number | undefined {
  const all = cumulative[cumulative.length - 1]?.[1] ?? 0;
  if (all <= 0) return undefined;
  const rank = share * all;
  let [lowerBound, lowerCount] = [0, 0];
  for (const [bound, count] of cumulative) {
    if (count >= rank) {
      if (bound === Infinity) return lowerBound;
      const inside = count - lowerCount;
      return inside <= 0 ? bound : lowerBound + ((bound - lowerBound) * (rank - lowerCount)) / inside;
    }
    [lowerBound, lowerCount] = [bound, count];
  }
  return lowerBound;
}
