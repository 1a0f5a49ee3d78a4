// All replicas, and the table of replicas in other views.

import { useMemo, useState } from 'preact/hooks';
import type { ModelReplica } from '../api/kinds';
import { replicaHealth } from '../fleet/health';
import { count, number, plural, seconds, UNKNOWN } from '../format/text';
import { parseQuantity } from '../format/quantity';
import { gib } from '../format/text';
import { href } from '../router';
import { replicas } from '../store';
import { Compare } from '../ui/Compare';
import { Age, Empty, Loaded, State } from '../ui/State';
import { Table, type Column } from '../ui/Table';
import { useTitle } from '../ui/use';

const measuredSpeed = (replica: ModelReplica) => parseQuantity(replica.status?.measured?.tokensPerSecond);
const prediction = (replica: ModelReplica) => replica.status?.measured?.predicted?.tokensPerSecond ?? replica.status?.admission?.speed?.tokensPerSecond;

/** True if the only prediction is that of all streams busy, which measured requests may not have been. */
const atFullLoad = (replica: ModelReplica) => replica.status?.measured !== undefined && replica.status.measured.predicted === undefined;

const NAME: Column<ModelReplica> = {
  id: 'name', title: 'Replica', width: 25, sort: (replica) => replica.metadata.name,
  cell: (replica) => (
    <><span class="cell-main long-name">{replica.metadata.name}</span><span class="cell-sub">{replica.spec.serving?.name ?? replica.spec.model.source}</span></>
  ),
};
const STATE: Column<ModelReplica> = {
  id: 'state', title: 'State', width: 13, sort: (replica) => replica.status?.phase,
  cell: (replica) => <State health={replicaHealth(replica)} />,
};
const NODE: Column<ModelReplica> = {
  id: 'node', title: 'Mac', width: 10, priority: 1, sort: (replica) => replica.spec.nodeName,
  cell: (replica) => (replica.spec.nodeName ? <a href={href('macs', replica.spec.nodeName)}>{replica.spec.nodeName}</a> : <span class="muted">{UNKNOWN}</span>),
};
const SPEED: Column<ModelReplica> = {
  id: 'speed', title: 'Tokens/s', hint: 'Measured, and predicted for the same requests', width: 18, numeric: true, priority: 2, sort: measuredSpeed,
  cell: (replica) => (
    <span class="bar-cell">
      <span class="bar-text"><b>{number(measuredSpeed(replica))}</b><span class="of"> / {number(prediction(replica)?.p50)} {atFullLoad(replica) ? 'full load' : 'pred.'}</span></span>
      <Compare predicted={prediction(replica)} measured={measuredSpeed(replica)} unit="tokens/s" />
    </span>
  ),
};
const MEMORY: Column<ModelReplica> = {
  id: 'memory', title: 'Memory', hint: 'Reserved memory in GiB', width: 9, numeric: true, priority: 3,
  sort: (replica) => parseQuantity(replica.status?.reservedMemory),
  cell: (replica) => <>{gib(parseQuantity(replica.status?.reservedMemory))}<span class="of"> GiB</span></>,
};
const REQUESTS: Column<ModelReplica> = {
  id: 'requests', title: 'Requests', hint: 'In-flight, waiting and completed requests', width: 10, numeric: true, priority: 2,
  sort: (replica) => replica.status?.requests?.completed,
  cell: (replica) => {
    const requests = replica.status?.requests;
    if (!requests) return UNKNOWN;
    return <><span class="cell-main">{requests.running}{requests.waiting > 0 && ` + ${requests.waiting}`}</span><span class="cell-sub">{count(requests.completed)} done{requests.failed > 0 && `, ${requests.failed} failed`}</span></>;
  },
};
const FIRST_TOKEN: Column<ModelReplica> = {
  id: 'ttft', title: 'TTFT', hint: 'Time to first token: measured, and predicted', width: 11, numeric: true, priority: 3,
  sort: (replica) => parseQuantity(replica.status?.measured?.timeToFirstTokenSeconds),
  cell: (replica) => (
    <><span class="cell-main">{seconds(parseQuantity(replica.status?.measured?.timeToFirstTokenSeconds))}</span>
      <span class="cell-sub">{seconds(replica.status?.measured?.predicted?.timeToFirstTokenSeconds.p50 ?? replica.status?.admission?.speed?.timeToFirstTokenSeconds.p50)} pred.</span></>
  ),
};
const AGE: Column<ModelReplica> = {
  id: 'age', title: 'Age', width: 6, numeric: true, priority: 3,
  sort: (replica) => -Date.parse(replica.metadata.creationTimestamp ?? ''), cell: (replica) => <Age at={replica.metadata.creationTimestamp} />,
};

const ON_MAC = [NAME, STATE, SPEED, FIRST_TOKEN, MEMORY, REQUESTS, AGE];
const ALL_COLUMNS = [NAME, STATE, NODE, SPEED, FIRST_TOKEN, MEMORY, REQUESTS, AGE];

export function ReplicaTable({ rows, label, onMac, empty }: { rows: readonly ModelReplica[]; label: string; onMac?: boolean; empty?: preact.ComponentChildren }) {
  const columns = onMac ? ON_MAC : ALL_COLUMNS;
  return (
    <Table
      label={label} rows={rows} columns={columns} name={(replica) => `${replica.metadata.namespace}/${replica.metadata.name}`}
      order={{ column: 'name', descending: false }} link={(replica) => href('replicas', replica.metadata.namespace ?? 'default', replica.metadata.name)}
      rowHeight={52} empty={empty ?? <Empty title="No replicas" />}
    />
  );
}

type Filter = 'all' | 'not-ready' | 'unscheduled';

const FILTERS: [Filter, string][] = [['all', 'All'], ['not-ready', 'Not ready'], ['unscheduled', 'Without a Mac']];

function wanted(replica: ModelReplica, by: Filter): boolean {
  return by === 'all' || (by === 'not-ready' ? replicaHealth(replica).level !== 'good' : replica.spec.nodeName === undefined);
}

export function Replicas() {
  useTitle('Replicas');
  const [text, setText] = useState('');
  const [filter, setFilter] = useState<Filter>('all');
  const current = replicas.objects.value;
  const all = useMemo(() => [...current.items.values()], [current]);
  const shown = useMemo(() => {
    const words = text.toLowerCase();
    if (filter === 'all' && words === '') return all;
    return all.filter((replica) => wanted(replica, filter) && (words === '' || searched(replica).includes(words)));
  }, [all, text, filter]);
  const filters = useMemo(() => FILTERS.map(([value, label]) => ({ value, label, amount: all.filter((replica) => wanted(replica, value)).length })), [all]);
  return (
    <>
      <div class="view-head"><h1>Replicas</h1></div>
      <Loaded of={replicas}>
        {all.length > 0 && (
          <div class="toolbar">
            <input class="search" type="search" placeholder="Filter by name, model, Mac" aria-label="Filter replicas" value={text} onInput={(event) => setText(event.currentTarget.value)} />
            <div class="segments" role="group" aria-label="State">
              {filters.map(({ value, label, amount }) => (
                <button key={value} type="button" aria-pressed={filter === value} onClick={() => setFilter(value)}>{label} <span class="of">{count(amount)}</span></button>
              ))}
            </div>
          </div>
        )}
        <ReplicaTable
          rows={shown} label="Replicas"
          empty={all.length === 0
            ? <Empty title="No replicas">A ModelDeployment creates replicas. <a href={href('apply')}>Apply one</a>.</Empty>
            : <Empty title="No replica matches">Change the filter to see {plural(all.length, 'replica')}.</Empty>}
        />
      </Loaded>
    </>
  );
}

function searched(replica: ModelReplica): string {
  return [replica.metadata.namespace, replica.metadata.name, replica.spec.serving?.name, replica.spec.model.source, replica.spec.nodeName, replicaHealth(replica).label].join(' ').toLowerCase();
}
