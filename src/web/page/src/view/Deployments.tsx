// All deployments: predicted beside measured speed.

import { useMemo, useState } from 'preact/hooks';
import { keyOf, type ModelDeployment } from '../api/kinds';
import { deploymentHealth } from '../fleet/health';
import { parsePair } from '../format/quantity';
import { number, plural, seconds } from '../format/text';
import { href } from '../router';
import { deployments } from '../store';
import { Age, Empty, Loaded, State } from '../ui/State';
import { Table, type Column } from '../ui/Table';
import { useTitle } from '../ui/use';

export function modelText(deployment: ModelDeployment): string {
  return deployment.spec.model.source.replace(/^(hf|local):\/\//, '');
}

const COLUMNS: Column<ModelDeployment>[] = [
  {
    id: 'name', title: 'Deployment', width: 21, sort: (row) => row.metadata.name,
    cell: (row) => <><span class="cell-main">{row.metadata.name}{row.metadata.namespace !== 'default' && <span class="muted"> {row.metadata.namespace}</span>}</span><span class="cell-sub">{modelText(row)}</span></>,
  },
  { id: 'state', title: 'State', width: 18, sort: (row) => deploymentHealth(row).level, cell: (row) => <State health={deploymentHealth(row)} /> },
  {
    id: 'ready', title: 'Ready', hint: 'Ready and desired replicas', width: 9, numeric: true, sort: (row) => row.status?.readyReplicas ?? 0,
    cell: (row) => {
      const [ready, wanted] = [row.status?.readyReplicas ?? 0, row.spec.replicas ?? 1];
      return <><span class={ready < wanted ? 'cell-main attention' : 'cell-main'}>{ready}</span><span class="of"> / {wanted}</span></>;
    },
  },
  {
    id: 'speed', title: 'Tokens/s', hint: 'Decode tokens/s of one stream: measured, predicted, objective', width: 18, numeric: true, priority: 2,
    sort: (row) => parsePair(row.status?.tokensPerSecond).measured ?? parsePair(row.status?.tokensPerSecond).predicted,
    cell: (row) => {
      const pair = parsePair(row.status?.tokensPerSecond);
      const wanted = row.spec.objectives?.decodeTokensPerSecond;
      return <PairCell measured={number(pair.measured)} predicted={number(pair.predicted)} objective={wanted === undefined ? undefined : `≥ ${number(wanted)}`} />;
    },
  },
  {
    id: 'ttft', title: 'TTFT', hint: 'Time to first token: measured, predicted, objective', width: 19, numeric: true, priority: 2,
    sort: (row) => parsePair(row.status?.timeToFirstToken).measured ?? parsePair(row.status?.timeToFirstToken).predicted,
    cell: (row) => {
      const pair = parsePair(row.status?.timeToFirstToken);
      const wanted = row.spec.objectives?.timeToFirstToken?.max;
      return <PairCell measured={seconds(pair.measured)} predicted={seconds(pair.predicted)} objective={wanted && `≤ ${wanted}`} />;
    },
  },
  {
    id: 'throughput', title: 'Throughput', hint: 'Predicted tokens/s of all ready replicas with all streams busy', width: 11, numeric: true, priority: 3,
    sort: (row) => row.status?.rollout?.predictedTokensPerSecond,
    cell: (row) => <><span class="cell-main">{number(row.status?.rollout?.predictedTokensPerSecond)}</span><span class="cell-sub">pred. tok/s</span></>,
  },
  { id: 'age', title: 'Age', width: 6, numeric: true, priority: 3, sort: (row) => -Date.parse(row.metadata.creationTimestamp ?? ''), cell: (row) => <Age at={row.metadata.creationTimestamp} /> },
];

function PairCell({ measured, predicted, objective }: { measured: string; predicted: string; objective?: string }) {
  return (
    <>
      <span class="cell-main">{measured}<span class="of"> / {predicted} pred.</span></span>
      {objective && <span class="cell-sub">objective {objective}</span>}
    </>
  );
}

export function Deployments() {
  useTitle('Deployments');
  const [text, setText] = useState('');
  const current = deployments.objects.value;
  const all = useMemo(() => [...current.items.values()], [current]);
  const shown = useMemo(
    () => all.filter((row) => [row.metadata.namespace, row.metadata.name, row.spec.model.source, row.spec.serving?.name, deploymentHealth(row).label].join(' ').toLowerCase().includes(text.toLowerCase())),
    [all, text],
  );
  return (
    <>
      <div class="view-head"><h1>Deployments</h1><a class="button" href={href('apply')}>Apply YAML</a></div>
      <Loaded of={deployments}>
        {all.length > 0 && (
          <div class="toolbar">
            <input class="search" type="search" placeholder="Filter by name, model, state" aria-label="Filter deployments" value={text} onInput={(event) => setText(event.currentTarget.value)} />
          </div>
        )}
        <Table
          label="Deployments" rows={shown} columns={COLUMNS} name={(row) => keyOf(row.metadata)} order={{ column: 'name', descending: false }}
          link={(row) => href('deployments', row.metadata.namespace ?? 'default', row.metadata.name)} rowHeight={52}
          empty={all.length === 0
            ? <Empty title="No deployments"><a href={href('apply')}>Apply a ModelDeployment</a> to serve a model.</Empty>
            : <Empty title="No deployment matches">Change the filter to see {plural(all.length, 'deployment')}.</Empty>}
        />
      </Loaded>
    </>
  );
}
