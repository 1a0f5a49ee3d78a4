// All Macs: state, memory, bandwidth, replicas.

import { useMemo, useState } from 'preact/hooks';
import type { FleetNode } from '../api/kinds';
import { nodeHealth, notable } from '../fleet/health';
import { bandwidthOf, type Usage } from '../fleet/usage';
import { bandwidth, bytes, count, gib, number, percent, plural, UNKNOWN } from '../format/text';
import { parseQuantity } from '../format/quantity';
import { href } from '../router';
import { nodes, replicas, usage } from '../store';
import { BarLegend, UsageBar } from '../ui/Bar';
import { Age, Empty, Loaded, State } from '../ui/State';
import { Figure } from '../ui/Panel';
import { Table, type Column } from '../ui/Table';
import { useTitle } from '../ui/use';

interface Row {
  node: FleetNode;
  usage: Usage;
}

const known = new WeakMap<FleetNode, Row>();

/** Returns the same row while neither the Mac nor its use has changed. */
function rowOf(node: FleetNode): Row {
  const used = usage(node);
  let row = known.get(node);
  if (row?.usage !== used) known.set(node, (row = { node, usage: used }));
  return row;
}

type Filter = 'all' | 'problems' | 'cordoned';

const COLUMNS: Column<Row>[] = [
  {
    id: 'name', title: 'Mac', width: 18, sort: ({ node }) => node.metadata.name,
    cell: ({ node }) => (
      <><span class="cell-main">{node.metadata.name}</span><span class="cell-sub">{chipText(node)}</span></>
    ),
  },
  { id: 'state', title: 'State', width: 13, sort: ({ node }) => nodeHealth(node).level, cell: ({ node }) => <NodeState node={node} /> },
  {
    id: 'memory', title: 'Memory', hint: 'Reserved by replicas, of the memory that models may use', width: 20, numeric: true,
    sort: ({ usage }) => (usage.memoryLimit ? usage.memoryReserved / usage.memoryLimit : undefined),
    cell: ({ usage }) => <MemoryCell usage={usage} />,
  },
  {
    id: 'bandwidth', title: 'Bandwidth', hint: "Share of the chip's time, and so of its bandwidth, that replicas have reserved", width: 17, numeric: true, priority: 2,
    sort: ({ usage }) => usage.bandwidthReserved, cell: ({ usage }) => <BandwidthCell usage={usage} />,
  },
  {
    id: 'measured', title: 'Measured', hint: 'Measured read bandwidth, and the figure of the data sheet', width: 11, numeric: true, priority: 3,
    sort: ({ node }) => bandwidthOf(node).measured ?? 0, cell: ({ node }) => <Measured node={node} />,
  },
  {
    id: 'replicas', title: 'Replicas', hint: 'Ready and all replicas on the Mac', width: 8, numeric: true, priority: 2,
    sort: ({ usage }) => usage.replicas,
    cell: ({ usage }) => <><span class={usage.ready < usage.replicas ? 'cell-main attention' : 'cell-main'}>{usage.ready}</span><span class="of"> / {usage.replicas}</span></>,
  },
  {
    id: 'requests', title: 'Requests', hint: 'In-flight requests, and waiting ones', width: 8, numeric: true, priority: 3,
    sort: ({ usage }) => usage.running + usage.waiting,
    cell: ({ usage }) => <>{usage.running}{usage.waiting > 0 && <span class="of"> + {usage.waiting}</span>}</>,
  },
  { id: 'age', title: 'Age', width: 6, numeric: true, priority: 3, sort: ({ node }) => -Date.parse(node.metadata.creationTimestamp ?? ''), cell: ({ node }) => <Age at={node.metadata.creationTimestamp} /> },
];

export function chipText(node: FleetNode): string {
  const chip = node.status?.chip;
  const cores = chip?.gpuCores ? `, ${chip.gpuCores}-core GPU` : '';
  return chip?.name ? `${chip.name.replace(/^Apple /, '')}${cores}` : UNKNOWN;
}

function NodeState({ node }: { node: FleetNode }) {
  const others = notable(node).length - 1;
  return <><State health={nodeHealth(node)} />{others > 0 && <span class="cell-sub">and {plural(others, 'condition')}</span>}</>;
}

function MemoryCell({ usage }: { usage: Usage }) {
  const label = `${bytes(usage.memoryReserved)} reserved, ${bytes(usage.memoryLoaded)} loaded, of ${bytes(usage.memoryLimit)}`;
  return (
    <span class="bar-cell">
      <span class="bar-text"><b>{gib(usage.memoryReserved)}</b><span class="of"> / {gib(usage.memoryLimit)} GiB</span></span>
      <UsageBar used={usage.memoryLoaded} reserved={usage.memoryReserved} limit={usage.memoryLimit} label={label} />
    </span>
  );
}

function BandwidthCell({ usage }: { usage: Usage }) {
  const label = `${percent(usage.bandwidthReserved)} reserved, ${percent(usage.bandwidthActive)} by replicas with requests`;
  return (
    <span class="bar-cell">
      <span class="bar-text"><b>{percent(usage.bandwidthReserved)}</b></span>
      <UsageBar used={usage.bandwidthActive} reserved={usage.bandwidthReserved} limit={100} label={label} />
    </span>
  );
}

function Measured({ node }: { node: FleetNode }) {
  const { measured, nominal } = bandwidthOf(node);
  return (
    <>
      <span class="cell-main" title="measured">{measured === undefined ? UNKNOWN : bandwidth(measured)}</span>
      <span class="cell-sub nominal-text" title="data sheet, not measured">{nominal === undefined ? 'no data sheet' : `spec ${bandwidth(nominal)}`}</span>
    </>
  );
}

export function Fleet() {
  useTitle('Fleet');
  const [text, setText] = useState('');
  const [filter, setFilter] = useState<Filter>('all');
  const current = nodes.objects.value;
  const placed = replicas.objects.value;
  const rows = useMemo(
    () => [...current.items.values()].map(rowOf),
    [current, placed],
  );
  const shown = useMemo(() => rows.filter((row) => matches(row.node, text, filter)), [rows, text, filter]);
  const [problems, cordoned] = useMemo(
    () => (['problems', 'cordoned'] as const).map((by) => rows.filter(({ node }) => matches(node, '', by)).length) as [number, number],
    [rows],
  );
  const filters: [Filter, string, number][] = [['all', 'All', rows.length], ['problems', 'Problems', problems], ['cordoned', 'Cordoned', cordoned]];
  return (
    <>
      <div class="view-head"><h1>Fleet</h1><BarLegend /></div>
      <Loaded of={[nodes, replicas]}>
        {rows.length > 0 && <Summary rows={rows} />}
        {rows.length > 0 && (
          <div class="toolbar">
            <input class="search" type="search" placeholder="Filter by name, chip, label" aria-label="Filter Macs" value={text} onInput={(event) => setText(event.currentTarget.value)} />
            <div class="segments" role="group" aria-label="State">
              {filters.map(([value, label, amount]) => (
                <button key={value} type="button" aria-pressed={filter === value} onClick={() => setFilter(value)}>{label} <span class="of">{count(amount)}</span></button>
              ))}
            </div>
          </div>
        )}
        <Table
          label="Macs" rows={shown} columns={COLUMNS} name={({ node }) => node.metadata.name}
          order={{ column: 'name', descending: false }} link={({ node }) => href('macs', node.metadata.name)} rowHeight={52}
          empty={rows.length === 0
            ? <Empty title="No Mac has joined">Run <code>rooflet token create</code> here and <code>rooflet join</code> on each Mac.</Empty>
            : <Empty title="No Mac matches">Change the filter to see {plural(rows.length, 'Mac')}.</Empty>}
        />
      </Loaded>
    </>
  );
}

function matches(node: FleetNode, text: string, filter: Filter): boolean {
  if (filter === 'cordoned' && !node.spec.unschedulable && !node.spec.drain) return false;
  if (filter === 'problems') {
    const { level } = nodeHealth(node);
    if (level !== 'bad' && notable(node).length === 0) return false;
  }
  if (text === '') return true;
  const labels = Object.entries(node.metadata.labels ?? {}).map(([key, value]) => `${key}=${value}`);
  const searched = [node.metadata.name, chipText(node), nodeHealth(node).label, ...labels].join(' ').toLowerCase();
  return text.toLowerCase().split(/\s+/).every((word) => searched.includes(word));
}

function Summary({ rows }: { rows: Row[] }) {
  let [ready, limit, reserved, loaded, total, taken, active, nominal, readyReplicas, allReplicas, running, waiting] = Array<number>(12).fill(0) as [number, number, number, number, number, number, number, number, number, number, number, number];
  for (const { node, usage } of rows) {
    const figures = bandwidthOf(node);
    const speed = figures.measured ?? figures.nominal ?? 0;
    if (figures.measured === undefined && figures.nominal !== undefined) nominal += 1;
    ready += nodeHealth(node).level === 'bad' || nodeHealth(node).level === 'idle' ? 0 : 1;
    limit += usage.memoryLimit ?? 0;
    reserved += usage.memoryReserved;
    loaded += usage.memoryLoaded;
    total += speed;
    taken += (speed * usage.bandwidthReserved) / 100;
    active += (speed * usage.bandwidthActive) / 100;
    readyReplicas += usage.ready;
    allReplicas += usage.replicas;
    running += usage.running;
    waiting += usage.waiting;
  }
  const installed = rows.reduce((sum, { node }) => sum + (parseQuantity(node.status?.capacity?.memory) ?? 0), 0);
  return (
    <dl class="summary">
      <Figure label="Macs ready" value={count(ready)} unit={`of ${count(rows.length)}`} note={`${bytes(installed)} installed`} />
      <Figure
        label="Memory reserved" value={gib(reserved)} unit={`of ${bytes(limit)}`}
        note={<UsageBar used={loaded} reserved={reserved} limit={limit} label={`${bytes(loaded)} loaded, ${bytes(reserved)} reserved, ${bytes(limit - reserved)} free`} />}
      />
      <Figure
        label="Bandwidth reserved" value={number(taken / 1e9)} unit={`of ${bandwidth(total)}`}
        note={<><UsageBar used={active} reserved={taken} limit={total} label={`${bandwidth(taken)} reserved, ${bandwidth(total - taken)} free`} />{nominal > 0 && <span class="nominal-text">{nominal === rows.length ? 'from data sheets' : `${plural(nominal, 'Mac')} from data sheets`}</span>}</>}
      />
      <Figure label="Replicas ready" value={count(readyReplicas)} unit={`of ${count(allReplicas)} placed`} />
      <Figure label="Requests in flight" value={count(running)} unit={waiting > 0 ? `+ ${count(waiting)} waiting` : undefined} />
    </dl>
  );
}
