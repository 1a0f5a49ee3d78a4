// Speed of the deployments over time, recorded while the page is open.

import { effect } from '@preact/signals';
import { parsePair } from './format/quantity';
import { throughputFloor } from './fleet/rollout';
import { now } from './clock';
import { deployments } from './store';

const INTERVAL_SECONDS = 5;
const MAX_SAMPLES = 2160;

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

export function seriesOf(deployment: string): Series | undefined {
  return series.get(deployment);
}

/** Records all deployments every five seconds, up to three hours. */
export function recordSpeeds(): void {
  let last = 0;
  effect(() => {
    const time = Math.floor(now.value / 1000);
    if (time - last < INTERVAL_SECONDS || deployments.sync.peek() !== 'live') return;
    last = time;
    const current = deployments.objects.peek().items;
    for (const key of series.keys()) if (!current.has(key)) series.delete(key);
    for (const [key, deployment] of current) {
      const speed = parsePair(deployment.status?.tokensPerSecond);
      const firstToken = parsePair(deployment.status?.timeToFirstToken);
      let found = series.get(key);
      if (!found) {
        found = { times: [], predicted: [], measured: [], firstTokenPredicted: [], firstTokenMeasured: [], throughput: [], floor: [] };
        series.set(key, found);
      }
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
