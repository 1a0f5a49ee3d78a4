// Speed of the deployments over time: the server's history, and what is recorded while the page is open.

import { effect, signal } from '@preact/signals';
import { json } from './api/http';
import { parsePair } from './format/quantity';
import { throughputFloor } from './fleet/rollout';
import { now } from './clock';
import { isCurrent } from './api/watch';
import { deployments } from './store';

const INTERVAL_SECONDS = 5;
/** Interval for deployments that are not shown, as in the server's history. */
const SLOW_INTERVAL_SECONDS = 60;
/** Three hours of own samples, and a day of the server's. */
const MAX_SAMPLES = 2160 + 1440;

type Value = number | null;

/** Columns of equal length. Times are seconds since 1970. */
export interface Series {
  times: number[];
  predicted: Value[];
  measured: Value[];
  firstTokenPredicted: Value[];
  firstTokenMeasured: Value[];
  throughput: Value[];
  floor: Value[];
}

const series = new Map<string, Series>();

/** Columns by the name of the server's series. */
const COLUMNS: Record<string, Exclude<keyof Series, 'times'>> = {
  measuredTokensPerSecond: 'measured',
  predictedTokensPerSecond: 'predicted',
  measuredTimeToFirstTokenSeconds: 'firstTokenMeasured',
  predictedTimeToFirstTokenSeconds: 'firstTokenPredicted',
  throughputTokensPerSecond: 'throughput',
  floorTokensPerSecond: 'floor',
};

/** Series with values at regular times, or at the listed times, in seconds since 1970. */
export type History = { series: Record<string, Value[]> } & ({ start: number; stepSeconds: number } | { times: number[] });

/** Returns the times of the values. */
export function timesOf(history: History): number[] {
  if ('times' in history) return history.times;
  const length = Math.max(0, ...Object.values(history.series).map((values) => values.length));
  return Array.from({ length }, (_, index) => history.start + index * history.stepSeconds);
}

export const empty = (): Series => ({ times: [], predicted: [], measured: [], firstTokenPredicted: [], firstTokenMeasured: [], throughput: [], floor: [] });

/** Puts the values of the history that are older than the samples before them. */
export function withHistory(samples: Series, history: History): Series {
  const first = samples.times[0] ?? Infinity;
  const times = timesOf(history).filter((time) => time < first);
  const joined = empty();
  joined.times = [...times, ...samples.times];
  for (const [name, column] of Object.entries(COLUMNS)) {
    const values = history.series[name] ?? [];
    joined[column] = [...times.map((_, index) => values[index] ?? null), ...samples[column]];
  }
  return joined;
}

/** Deployment whose view was opened last. */
let followed = '';
/** Deployments whose history has been read. */
const read = new Set<string>();
/** Changes when a history arrives. */
export const historyVersion = signal(0);

/** Reads the server's history of a deployment once. Servers without a controller have none. */
export async function loadHistory(namespace: string, name: string): Promise<void> {
  const key = `${namespace}/${name}`;
  followed = key;
  if (read.has(key)) return;
  read.add(key);
  try {
    const history = await json<History>(`/proxy/history/deployments/${encodeURIComponent(namespace)}/${encodeURIComponent(name)}`);
    series.set(key, withHistory(series.get(key) ?? empty(), history));
    historyVersion.value += 1;
  } catch {
    read.delete(key);
  }
}

export function seriesOf(deployment: string): Series | undefined {
  return series.get(deployment);
}

/** Records the deployment that is shown every five seconds, up to three hours, and the others every minute. */
export function recordSpeeds(): void {
  let last = 0;
  effect(() => {
    const time = Math.floor(now.value / 1000);
    if (time - last < INTERVAL_SECONDS || !isCurrent(deployments.sync.peek())) return;
    last = time;
    const current = deployments.objects.peek().items;
    for (const key of series.keys()) {
      if (current.has(key)) continue;
      series.delete(key);
      read.delete(key);
    }
    for (const [key, deployment] of current) {
      let found = series.get(key);
      if (!found) {
        found = empty();
        series.set(key, found);
      }
      if (key !== followed && time - (found.times.at(-1) ?? 0) < SLOW_INTERVAL_SECONDS) continue;
      const speed = parsePair(deployment.status?.tokensPerSecond);
      const firstToken = parsePair(deployment.status?.timeToFirstToken);
      found.times.push(time);
      found.predicted.push(speed.predicted ?? null);
      found.measured.push(speed.measured ?? null);
      found.firstTokenPredicted.push(firstToken.predicted ?? null);
      found.firstTokenMeasured.push(firstToken.measured ?? null);
      found.throughput.push(deployment.status?.rollout?.predictedTokensPerSecond ?? null);
      found.floor.push(throughputFloor(deployment)?.tokensPerSecond ?? null);
      if (found.times.length > MAX_SAMPLES) for (const column of Object.values(found)) column.shift();
    }
  });
}
