// Requests through the gateway, by model and by key.

import { useEffect, useMemo, useRef, useState } from 'preact/hooks';
import { keyOf, type ApiKey } from '../api/kinds';
import { request } from '../api/http';
import { added, buckets, parseMetrics, quantile, total, type Buckets, type Sample } from '../fleet/metrics';
import { count, number, seconds, short, UNKNOWN } from '../format/text';
import { deployments, keys, replicas, replicasOf } from '../store';
import { href } from '../router';
import { messageOf } from '../ui/Dialog';
import { Chart } from '../ui/Chart';
import { Columns, Figure, Panel } from '../ui/Panel';
import { Age, Empty, Loaded } from '../ui/State';
import { Table, type Column } from '../ui/Table';
import { useTitle, useWatch } from '../ui/use';

const INTERVAL_SECONDS = 5;
const MAX_READINGS = 720;
const HISTOGRAMS = {
  first: 'rooflet_gateway_time_to_first_byte_seconds',
  whole: 'rooflet_gateway_request_seconds',
  queue: 'rooflet_gateway_queue_seconds',
} as const;

interface Reading {
  at: number;
  samples: Sample[];
}

export function Requests() {
  useTitle('Requests');
  useWatch(keys);
  return (
    <>
      <div class="view-head"><h1>Requests</h1></div>
      <Gateway />
      <Panel title="By model" aside={<span class="muted">since the start of each worker; reported every ten seconds</span>}><Models /></Panel>
      <Panel title="By key" aside={<span class="muted">days in UTC</span>}><Keys /></Panel>
    </>
  );
}

function Gateway() {
  const readings = useRef<Reading[]>([]);
  const [, refresh] = useState(0);
  const [problem, setProblem] = useState<string>();
  useEffect(() => {
    const stop = new AbortController();
    const read = async () => {
      try {
        const response = await request('/proxy/metrics/gateway', { signal: stop.signal });
        readings.current = [...readings.current, { at: Date.now() / 1000, samples: parseMetrics(await response.text()) }].slice(-MAX_READINGS);
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
  const all = readings.current;
  const last = all[all.length - 1];
  if (!last) return problem ? <Empty title="The gateway's metrics are not available">{problem}</Empty> : <div class="skeleton" role="status" aria-label="Loading"><i /><i /></div>;
  const byClass = new Map<string, number>();
  for (const sample of last.samples) {
    if (sample.name === 'rooflet_gateway_requests_total') byClass.set(sample.labels.code ?? '', (byClass.get(sample.labels.code ?? '') ?? 0) + sample.value);
  }
  const errors = [...byClass].filter(([code]) => code !== '2xx');
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
        <Figure label="Finished" value={count(total(last.samples, 'rooflet_gateway_requests_total'))} note={errors.length === 0 ? 'no errors' : errors.map(([code, amount]) => `${count(amount)} ${code}`).join(', ')} />
        <Figure label="Retries" value={count(total(last.samples, 'rooflet_gateway_retries_total'))} note={`${count(total(last.samples, 'rooflet_gateway_hedges_total'))} hedges, ${count(total(last.samples, 'rooflet_gateway_fallbacks_total'))} fallbacks`} />
      </dl>
      <Columns
        main={<Panel title="Rate">
          {times.length > 0
            ? <Chart title="All models" times={times} format={number} mark={short} lines={[{ label: 'requests/s', values: rates, look: 'measured' }, { label: 'queued', values: waiting, look: 'predicted' }]} />
            : <p class="muted">The chart begins when this view is opened.</p>}
        </Panel>}
        side={<Panel title="Times">
          <table class="sum wide-sum" aria-label="Times">
            <thead><tr><th scope="col"><span class="hidden">Time</span></th><th scope="col">p50</th><th scope="col">p95</th><th scope="col">p99</th></tr></thead>
            <tbody>
              <Times label="To first token" name={HISTOGRAMS.first} all={all} />
              <Times label="Whole request" name={HISTOGRAMS.whole} all={all} />
              <Times label="In the queue" name={HISTOGRAMS.queue} all={all} />
            </tbody>
          </table>
          <p class="note muted">Of the requests while this view is open, or of all requests since the gateway's start if there were none. Interpolated in the histogram's buckets.</p>
        </Panel>}
      />
    </>
  );
}

function Times({ label, name, all }: { label: string; name: string; all: Reading[] }) {
  const now = buckets(all[all.length - 1]!.samples, name);
  const since = added(now, buckets(all[0]!.samples, name));
  const used: Buckets = (since[since.length - 1]?.[1] ?? 0) > 0 ? since : now;
  return (
    <tr>
      <th scope="row">{label}</th>
      {[0.5, 0.95, 0.99].map((share) => <td key={share}>{seconds(quantile(used, share))}</td>)}
    </tr>
  );
}

function rate(before: Reading, after: Reading): number | null {
  const [from, to] = [before, after].map((reading) => total(reading.samples, 'rooflet_gateway_requests_total') ?? 0) as [number, number];
  return to < from ? null : (to - from) / (after.at - before.at);
}

interface ModelRow {
  name: string;
  namespace: string;
  running: number;
  waiting: number;
  completed: number;
  failed: number;
}

const MODEL_COLUMNS: Column<ModelRow>[] = [
  { id: 'name', title: 'Deployment', width: 36, sort: (row) => row.name, cell: (row) => row.name },
  { id: 'running', title: 'In flight', width: 16, numeric: true, sort: (row) => row.running, cell: (row) => count(row.running) },
  { id: 'waiting', title: 'Waiting', width: 16, numeric: true, sort: (row) => row.waiting, cell: (row) => count(row.waiting) },
  { id: 'completed', title: 'Completed', width: 16, numeric: true, sort: (row) => row.completed, cell: (row) => count(row.completed) },
  { id: 'failed', title: 'Failed', width: 16, numeric: true, sort: (row) => row.failed, cell: (row) => (row.failed > 0 ? <b class="attention">{count(row.failed)}</b> : '0') },
];

function Models() {
  const current = deployments.objects.value;
  const placed = replicas.objects.value;
  const rows = useMemo(
    () => [...current.items].map(([key, deployment]) => {
      const row: ModelRow = { name: deployment.metadata.name, namespace: deployment.metadata.namespace ?? 'default', running: 0, waiting: 0, completed: 0, failed: 0 };
      for (const replica of replicasOf(key).values()) {
        const requests = replica.status?.requests;
        row.running += requests?.running ?? 0;
        row.waiting += requests?.waiting ?? 0;
        row.completed += requests?.completed ?? 0;
        row.failed += requests?.failed ?? 0;
      }
      return row;
    }),
    [current, placed],
  );
  return (
    <Loaded of={[deployments, replicas]}>
      <Table label="Requests by model" rows={rows} columns={MODEL_COLUMNS} name={(row) => `${row.namespace}/${row.name}`} order={{ column: 'completed', descending: true }} link={(row) => href('deployments', row.namespace, row.name)} rowHeight={38} empty={<Empty title="No deployments" />} />
    </Loaded>
  );
}

const KEY_COLUMNS: Column<ApiKey>[] = [
  {
    id: 'name', title: 'Key', width: 28, sort: (key) => key.metadata.name,
    cell: (key) => <><span class="cell-main">{key.metadata.name}</span><span class="cell-sub">{key.spec.secretHint ? `…${key.spec.secretHint}` : key.metadata.namespace}</span></>,
  },
  { id: 'models', title: 'Models', width: 20, priority: 2, sort: (key) => key.spec.models?.join(), cell: (key) => key.spec.models?.join(', ') ?? 'all' },
  { id: 'requests', title: 'Requests today', width: 15, numeric: true, sort: (key) => key.status?.requestsToday, cell: (key) => count(key.status?.requestsToday) },
  {
    id: 'tokens', title: 'Tokens today', width: 19, numeric: true, sort: (key) => key.status?.tokensToday,
    cell: (key) => <>{count(key.status?.tokensToday)}{key.spec.tokensPerDay !== undefined && <span class="of"> / {count(key.spec.tokensPerDay)}</span>}</>,
  },
  { id: 'limit', title: 'Tokens/min', width: 10, numeric: true, priority: 2, sort: (key) => key.spec.tokensPerMinute, cell: (key) => (key.spec.tokensPerMinute === undefined ? 'no limit' : count(key.spec.tokensPerMinute)) },
  { id: 'used', title: 'Last used', width: 8, numeric: true, priority: 3, sort: (key) => key.status?.lastUsedTime, cell: (key) => (key.status?.lastUsedTime ? <Age at={key.status.lastUsedTime} /> : UNKNOWN) },
];

function Keys() {
  const rows = useMemo(() => [...keys.objects.value.items.values()], [keys.objects.value]);
  return (
    <Loaded of={keys}>
      <Table label="Requests by key" rows={rows} columns={KEY_COLUMNS} name={(key) => keyOf(key.metadata)} order={{ column: 'tokens', descending: true }} empty={<Empty title="No API keys">Run <code>rooflet key create</code> to create one.</Empty>} />
    </Loaded>
  );
}
