// Requests through the gateway, by model and by key.

import { useEffect, useMemo, useRef, useState } from 'preact/hooks';
import { keyOf, type ApiKey } from '../api/kinds';
import { request } from '../api/http';
import { added, buckets, lastMinute, parseMetrics, total, totals, type Buckets, type Counters, type Sample } from '../fleet/metrics';
import { currentRequests } from '../fleet/usage';
import { count, number, short, UNKNOWN, words } from '../format/text';
import { now, serverNow } from '../clock';
import { deployments, keys, replicas, replicasOf } from '../store';
import { href } from '../router';
import { messageOf } from '../ui/Dialog';
import { Chart } from '../ui/Chart';
import { Columns, Facts, Figure, Panel } from '../ui/Panel';
import { Quantiles } from '../ui/Quantiles';
import { Age, Empty, Loaded } from '../ui/State';
import { Table, type Column } from '../ui/Table';
import { useTitle, useWatch } from '../ui/use';
import { Engine } from './Engine';

const INTERVAL_SECONDS = 5;
const MAX_READINGS = 720;
/** Readings of a minute, and one more. */
const MAX_COUNTERS = 60 / INTERVAL_SECONDS + 1;
const HISTOGRAMS = {
  first: 'rooflet_gateway_time_to_first_byte_seconds',
  whole: 'rooflet_gateway_request_seconds',
  queue: 'rooflet_gateway_queue_seconds',
} as const;

interface Reading {
  at: number;
  /** Seconds of a clock that never jumps. */
  tick: number;
  samples: Sample[];
}

export function Requests() {
  useTitle('Requests');
  useWatch(keys);
  const { readings, problem } = useReadings();
  return (
    <>
      <div class="view-head"><h1>Requests</h1></div>
      <Gateway all={readings} problem={problem} />
      <Engine />
      <Panel title="By model" aside={<span class="muted">since the start of each worker</span>}><Models readings={readings} /></Panel>
      <Panel title="By key" aside={<span class="muted">days in UTC</span>}><Keys readings={readings} /></Panel>
    </>
  );
}

/** Reads the gateway's metrics while the view is shown. */
function useReadings(): { readings: Reading[]; problem?: string } {
  const readings = useRef<Reading[]>([]);
  const [, refresh] = useState(0);
  const [problem, setProblem] = useState<string>();
  useEffect(() => {
    const stop = new AbortController();
    const read = async () => {
      try {
        const response = await request('/proxy/metrics/gateway', { signal: stop.signal });
        readings.current = [...readings.current, { at: serverNow() / 1000, tick: performance.now() / 1000, samples: parseMetrics(await response.text()) }].slice(-MAX_READINGS);
        setProblem(undefined);
      } catch (error) {
        if (!stop.signal.aborted) setProblem(messageOf(error));
      }
      refresh((value) => value + 1);
    };
    void read();
    // A rate needs two readings.
    const second = setTimeout(() => void read(), 1000);
    const timer = setInterval(() => !document.hidden && void read(), INTERVAL_SECONDS * 1000);
    return () => {
      stop.abort();
      clearTimeout(second);
      clearInterval(timer);
    };
  }, []);
  return { readings: readings.current, problem };
}

function Gateway({ all, problem }: { all: Reading[]; problem?: string }) {
  const last = all[all.length - 1];
  if (!last) return problem ? <Empty title="The gateway's metrics are not available">{problem}</Empty> : <div class="skeleton" role="status" aria-label="Loading"><i /><i /></div>;
  const errors = errorsOf(last.samples);
  const times = all.slice(1).map((reading) => Math.round(reading.at));
  const rates = all.slice(1).map((reading, index) => rate(all[index]!, reading));
  const waiting = all.slice(1).map((reading) => total(reading.samples, 'rooflet_gateway_queued_requests') ?? null);
  return (
    <>
      {problem && <p class="problem" role="alert">{problem}</p>}
      <dl class="summary">
        <Figure label="Requests/s" value={number(rates[rates.length - 1] ?? undefined)} note="last seconds" />
        <Figure label="In progress" value={count(total(last.samples, 'rooflet_gateway_outstanding_requests'))} />
        <Figure label="Queued" value={count(total(last.samples, 'rooflet_gateway_queued_requests'))} />
        <Figure label="Finished" value={count(total(last.samples, 'rooflet_gateway_requests_total'))} note={errors.length === 0 ? 'no errors' : undefined} />
        <Figure label="Retries" value={count(total(last.samples, 'rooflet_gateway_retries_total'))} note={`${count(total(last.samples, 'rooflet_gateway_hedges_total'))} hedges, ${count(total(last.samples, 'rooflet_gateway_fallbacks_total'))} fallbacks`} />
      </dl>
      <Columns
        main={<Panel title="Rate">
          {times.length > 0
            ? <Chart title="All models" times={times} format={number} mark={short} lines={[{ label: 'requests/s', values: rates, look: 'measured' }, { label: 'queued', values: waiting, look: 'predicted' }]} />
            : <p class="muted">The chart begins when this view is opened.</p>}
        </Panel>}
        side={<><Panel title="Times">
          <Quantiles label="Times" of={[['To first token', recent(all, HISTOGRAMS.first)], ['Whole request', recent(all, HISTOGRAMS.whole)], ['In the queue', recent(all, HISTOGRAMS.queue)]]} />
          <p class="note muted">Of the requests while this view is open, or of all requests since the gateway's start if there were none. Interpolated in the histogram's buckets.</p>
        </Panel>
        {errors.length > 0 && <Panel title="Errors" aside={<span class="muted">since the gateway's start</span>}><Facts of={errors} /></Panel>}</>}
      />
    </>
  );
}

/** Counts since the view was opened, or of all requests if there were none. */
function recent(all: Reading[], name: string): Buckets {
  const now = buckets(all[all.length - 1]!.samples, name);
  const since = added(now, buckets(all[0]!.samples, name));
  return (since[since.length - 1]?.[1] ?? 0) > 0 ? since : now;
}

/** Counts of requests without an answer by status class and by the reason of a rejection. */
function errorsOf(samples: Sample[]): [string, string][] {
  const by = (name: string, label: string) => [...totals(samples, `rooflet_gateway_${name}`, (labels) => labels[label] ?? '')];
  return [...by('requests_total', 'code').filter(([code]) => code !== '2xx'), ...by('refusals_total', 'reason'), ...by('key_denials_total', 'reason')]
    .filter(([, amount]) => amount > 0)
    .map(([reason, amount]) => [words(reason), count(amount)]);
}

function rate(before: Reading, after: Reading): number | null {
  const [from, to] = [before, after].map((reading) => total(reading.samples, 'rooflet_gateway_requests_total') ?? 0) as [number, number];
  return to < from ? null : (to - from) / (after.tick - before.tick);
}

interface ModelRow {
  name: string;
  /** Name by which clients request the model. */
  served: string;
  namespace: string;
  running: number;
  waiting: number;
  completed: number;
  failed: number;
  lastMinute?: number;
  /** Reasons of the gateway with their counts. */
  errors?: string;
}

const MODEL_COLUMNS: Column<ModelRow>[] = [
  { id: 'name', title: 'Deployment', width: 20, sort: (row) => row.name, cell: (row) => row.name },
  { id: 'running', title: 'In flight', width: 12, numeric: true, sort: (row) => row.running, cell: (row) => count(row.running) },
  { id: 'waiting', title: 'Waiting', width: 9, numeric: true, priority: 2, sort: (row) => row.waiting, cell: (row) => count(row.waiting) },
  { id: 'completed', title: 'Completed', width: 18, numeric: true, sort: (row) => row.completed, cell: (row) => count(row.completed) },
  { id: 'failed', title: 'Failed', width: 9, numeric: true, priority: 2, sort: (row) => row.failed, cell: (row) => (row.failed > 0 ? <b class="attention">{count(row.failed)}</b> : '0') },
  { id: 'rate', title: 'Last minute', hint: 'Finished requests of the last minute, or since this view was opened', width: 12, numeric: true, priority: 2, sort: (row) => row.lastMinute, cell: (row) => count(row.lastMinute) },
  { id: 'errors', title: 'Errors', hint: 'Requests without a complete response, since the gateway started', width: 20, sort: (row) => row.errors, cell: (row) => row.errors ?? 'none' },
];

/** Keeps the counters of the last readings, one per interval. */
function useCounters(counts: ReadonlyMap<string, number>): readonly Counters[] {
  const kept = useRef<Counters[]>([]);
  const tick = Math.floor(now.value / 1000);
  const last = kept.current[kept.current.length - 1];
  if (!last || tick - last.tick >= INTERVAL_SECONDS) kept.current = [...kept.current, { tick, counts }].slice(-MAX_COUNTERS);
  return kept.current;
}

/** Returns the errors of each model by reason. */
function modelErrors(samples: Sample[]): Map<string, string> {
  const found = new Map<string, string>();
  for (const { name, labels, value } of samples) {
    if (name !== 'rooflet_gateway_model_errors_total') continue;
    const model = `${labels.namespace}/${labels.model}`;
    const before = found.get(model);
    found.set(model, `${before ? `${before}, ` : ''}${words(labels.reason!)} ${count(value)}`);
  }
  return found;
}

function Models({ readings }: { readings: Reading[] }) {
  const current = deployments.objects.value;
  const placed = replicas.objects.value;
  const sums = useMemo(
    () => [...current.items].map(([key, deployment]) => {
      const row: ModelRow = { name: deployment.metadata.name, served: deployment.spec.serving?.name ?? deployment.metadata.name, namespace: deployment.metadata.namespace ?? 'default', running: 0, waiting: 0, completed: 0, failed: 0 };
      for (const replica of replicasOf(key).values()) {
        const requests = replica.status?.requests;
        const current = currentRequests(replica.status);
        row.running += current?.running ?? 0;
        row.waiting += current?.waiting ?? 0;
        row.completed += requests?.completed ?? 0;
        row.failed += requests?.failed ?? 0;
      }
      return row;
    }),
    [current, placed],
  );
  const counts = useMemo(() => new Map(sums.map((row) => [`${row.namespace}/${row.name}`, row.completed + row.failed])), [sums]);
  const counters = useCounters(counts);
  const rows = useMemo(() => {
    const errors = modelErrors(readings[readings.length - 1]?.samples ?? []);
    return sums.map((row) => ({ ...row, lastMinute: lastMinute(counters, `${row.namespace}/${row.name}`), errors: errors.get(`${row.namespace}/${row.served}`) }));
  }, [sums, counters, readings]);
  return (
    <Loaded of={[deployments, replicas]}>
      <Table label="Requests by model" rows={rows} columns={MODEL_COLUMNS} name={(row) => `${row.namespace}/${row.name}`} order={{ column: 'completed', descending: true }} link={(row) => href('deployments', row.namespace, row.name)} rowHeight={38} empty={<Empty title="No deployments" />} />
    </Loaded>
  );
}

interface KeyRow {
  key: ApiKey;
  /** Requests and tokens of the last minute. */
  requests?: number;
  tokens?: number;
}

const KEY_COLUMNS: Column<KeyRow>[] = [
  {
    id: 'name', title: 'Key', width: 18, sort: ({ key }) => key.metadata.name,
    cell: ({ key }) => <><span class="cell-main">{key.metadata.name}</span><span class="cell-sub">{key.spec.secretHint ? `…${key.spec.secretHint}` : key.metadata.namespace}</span></>,
  },
  { id: 'models', title: 'Models', width: 14, priority: 2, sort: ({ key }) => key.spec.models?.join(), cell: ({ key }) => key.spec.models?.join(', ') ?? 'all' },
  { id: 'requests', title: 'Requests today', width: 14, numeric: true, priority: 2, sort: ({ key }) => key.status?.requestsToday, cell: ({ key }) => count(key.status?.requestsToday) },
  {
    id: 'tokens', title: 'Tokens today', hint: 'Tokens of today, and the limit per day', width: 18, numeric: true, sort: ({ key }) => key.status?.tokensToday,
    cell: ({ key }) => <>{count(key.status?.tokensToday)}<Limit of={key.spec.tokensPerDay} /></>,
  },
  {
    id: 'request-rate', title: 'Requests/min', hint: 'Admitted requests of the last minute, or since this view was opened, and the limit', width: 12, numeric: true, priority: 2, sort: (row) => row.requests,
    cell: ({ key, requests }) => <>{count(requests)}<Limit of={key.spec.requestsPerMinute} /></>,
  },
  {
    id: 'token-rate', title: 'Tokens/min', hint: 'Tokens of the last minute, or since this view was opened, and the limit', width: 14, numeric: true, priority: 2, sort: (row) => row.tokens,
    cell: ({ key, tokens }) => <>{count(tokens)}<Limit of={key.spec.tokensPerMinute} /></>,
  },
  { id: 'used', title: 'Last used', width: 10, numeric: true, priority: 3, sort: ({ key }) => key.status?.lastUsedTime, cell: ({ key }) => (key.status?.lastUsedTime ? <Age at={key.status.lastUsedTime} /> : UNKNOWN) },
];

function Limit({ of }: { of?: number }) {
  return of === undefined ? null : <span class="of"> / {count(of)}</span>;
}

const byKey = (labels: Record<string, string>) => `${labels.namespace}/${labels.key}`;

function Keys({ readings }: { readings: Reading[] }) {
  const current = keys.objects.value;
  const [requests, tokens] = useMemo(() => {
    const recent = readings.slice(-MAX_COUNTERS);
    const counters = (name: string) => recent.map(({ tick, samples }): Counters => ({ tick, counts: totals(samples, name, byKey) }));
    return [counters('rooflet_gateway_key_requests_total'), counters('rooflet_gateway_key_tokens_total')] as const;
  }, [readings]);
  const rows = useMemo(
    () => [...current.items].map(([name, key]): KeyRow => ({ key, requests: lastMinute(requests, name), tokens: lastMinute(tokens, name) })),
    [current, requests, tokens],
  );
  return (
    <Loaded of={keys}>
      <Table label="Requests by key" rows={rows} columns={KEY_COLUMNS} name={({ key }) => keyOf(key.metadata)} order={{ column: 'tokens', descending: true }} rowHeight={52} empty={<Empty title="No API keys">Run <code>rooflet key create</code> to create one.</Empty>} />
    </Loaded>
  );
}
