// One Mac: roofline, use, measurements, replicas, conditions, events.

import { useMemo, useState } from 'preact/hooks';
import type { FleetNode, ModelReplica, Probe } from '../api/kinds';
import { remove, schedule, schedulePatch } from '../actions';
import { NODES } from '../api/resources';
import { nodeHealth } from '../fleet/health';
import { speedRows } from '../fleet/usage';
import { parseQuantity } from '../format/quantity';
import { bandwidth, bytes, number, percent, plural, seconds, short, UNKNOWN } from '../format/text';
import { href } from '../router';
import { timesOf } from '../samples';
import { nodes, replicas, replicasOn, usage } from '../store';
import { BarLegend, UsageBar } from '../ui/Bar';
import { Chart, type Line } from '../ui/Chart';
import { Conditions } from '../ui/Conditions';
import { Dialog } from '../ui/Dialog';
import { ObjectEvents } from '../ui/ObjectEvents';
import { Columns, Facts, ObjectHead, Panel } from '../ui/Panel';
import { Period, usePast } from '../ui/Past';
import { Preview } from '../ui/Preview';
import { RooflinePicture } from '../ui/RooflinePicture';
import { Age, Empty, Loaded, State } from '../ui/State';
import { useAllowed, useTitle } from '../ui/use';
import { chipText } from './Fleet';
import { ReplicaTable } from './Replicas';

type Question = 'cordon' | 'uncordon' | 'drain' | 'remove';

export function Mac({ name }: { name: string }) {
  useTitle(name);
  const placed = replicas.objects.value;
  const node = nodes.objects.value.items.get(name);
  const own = useMemo(() => [...replicasOn(name).values()], [placed, name]);
  return (
    <Loaded of={[nodes, replicas]}>
      {node ? <Details node={node} own={own} /> : (
        <Empty title={`The fleet has no Mac ${name}`}><a href={href('macs')}>Show all Macs</a></Empty>
      )}
    </Loaded>
  );
}

function Details({ node, own }: { node: FleetNode; own: ModelReplica[] }) {
  const [question, setQuestion] = useState<Question>();
  const mayPatch = useAllowed('patch', 'fleetnodes');
  const mayDelete = useAllowed('delete', 'fleetnodes');
  const { status, spec } = node;
  const measured = status?.speed ?? status?.probe;
  const used = usage(node);
  const capacity = parseQuantity(status?.capacity?.memory);
  const simulated = node.metadata.labels?.['rooflet.dev/simulated'] === 'true';
  const stopped = spec.unschedulable || spec.drain;
  return (
    <>
      <ObjectHead
        back="Fleet" backTo={href('macs')} title={node.metadata.name} state={<State health={nodeHealth(node)} />}
        actions={(mayPatch || mayDelete) && (
          <>
            {mayPatch && <button type="button" class="button" onClick={() => setQuestion(stopped ? 'uncordon' : 'cordon')}>{stopped ? 'Uncordon' : 'Cordon'}</button>}
            {mayPatch && <button type="button" class="button" disabled={spec.drain} onClick={() => setQuestion('drain')}>Drain</button>}
            {mayDelete && <button type="button" class="button danger-text" onClick={() => setQuestion('remove')}>Remove</button>}
          </>
        )}
      >
        {chipText(node)} · {bytes(capacity)} {simulated ? <span class="tag">simulated</span> : <> · {status?.nodeInfo?.operatingSystem ?? UNKNOWN}</>}
      </ObjectHead>
      <Columns
        main={<Panel title="Roofline" aside={<span class="muted">decoding</span>}>
          <RooflinePicture node={node} replicas={own} />
        </Panel>}
        side={<Panel title="Use" aside={<BarLegend />}>
          <Use node={node} />
          <Facts
            of={[
              ['Allocatable memory', `${bytes(used.memoryLimit)} of ${bytes(capacity)}`],
              ['Requests', `${used.running} in flight, ${used.waiting} waiting`],
              ['Thermal state', measured && measured.thermalState !== 'Unknown' ? `${measured.thermalState} at the last probe` : UNKNOWN],
              ['Power', measured && measured.powerSource !== 'Unknown' ? measured.powerSource : UNKNOWN],
              ['Engine', status?.nodeInfo?.engine ?? UNKNOWN],
              ['Agent', status?.nodeInfo?.agentVersion ?? UNKNOWN],
              ['Model identifier', status?.chip?.machineModel ?? UNKNOWN],
            ]}
          />
        </Panel>}
      />
      <Panel title="Replicas" aside={<span class="muted">{plural(own.length, 'replica')}</span>}>
          <ReplicaTable rows={own} label={`Replicas on ${node.metadata.name}`} onMac empty={<Empty title="No replica runs here" />} />
      </Panel>
      <Columns
        main={<><Panel title="Measurements"><Bandwidths node={node} /><Measurements node={node} /></Panel><Panel title="Events"><ObjectEvents of={node} /></Panel></>}
        side={<Panel title="Conditions"><Conditions of={status?.conditions} /></Panel>}
      />
      {question && <Question node={node} own={own} kind={question} onClose={() => setQuestion(undefined)} />}
    </>
  );
}

function Use({ node }: { node: FleetNode }) {
  const used = usage(node);
  const limit = used.memoryLimit;
  return (
    <div class="uses">
      <div class="use">
        <span>Memory</span><b>{bytes(used.memoryReserved)}</b><span class="muted">of {bytes(limit)} reserved, {bytes(used.memoryLoaded)} loaded</span>
        <UsageBar used={used.memoryLoaded} reserved={used.memoryReserved} limit={limit} label={`${bytes(limit === undefined ? undefined : limit - used.memoryReserved)} of memory free`} />
      </div>
      <div class="use">
        <span>Bandwidth</span><b>{percent(used.bandwidthReserved)}</b><span class="muted">reserved, {percent(used.bandwidthActive)} in use</span>
        <UsageBar used={used.bandwidthActive} reserved={used.bandwidthReserved} limit={100} label={`${percent(100 - used.bandwidthReserved)} of the bandwidth free`} />
      </div>
    </div>
  );
}

/** Measured bandwidth over time. The control plane keeps the last measurements, Prometheus all of them. */
function Bandwidths({ node }: { node: FleetNode }) {
  const [hours, setHours] = useState(0);
  const { speed, probe, dataSheet } = node.status ?? {};
  const { history, problem } = usePast(`nodes/${encodeURIComponent(node.metadata.name)}${hours ? `?hours=${hours}` : ''}`, (speed ?? probe)?.measuredAt);
  const times = history ? timesOf(history) : [];
  const line = (label: string, name: string, look: Line['look']) => {
    const values = history?.series[name];
    return values ? [{ label, values, look }] : [];
  };
  const lines = [
    ...line('read', 'measuredBytesPerSecond', 'measured'), ...line('decode', 'decodeBytesPerSecond', 'measured'),
    ...line('10th percentile', 'p10BytesPerSecond', 'predicted'), ...line('90th percentile', 'p90BytesPerSecond', 'predicted'),
    ...(dataSheet ? [{ label: 'data sheet', values: times.map(() => dataSheet.memoryBytesPerSecond), look: 'limit' as const }] : []),
  ];
  return (
    <>
      <Period hours={hours} own="Last measurements" onChange={setHours} />
      {hours > 0 && problem && <p class="problem" role="alert">{problem}</p>}
      {times.length > 1 && <Chart title="Bandwidth, GB/s" times={times} format={bandwidth} mark={(value) => short(value / 1e9)} points={!hours} lines={lines} />}
    </>
  );
}

function Measurements({ node }: { node: FleetNode }) {
  const { speed, probe, dataSheet } = node.status ?? {};
  const spec: [string, preact.ComponentChildren][] = dataSheet
    ? [['Data sheet', <span class="nominal-text">{bandwidth(dataSheet.memoryBytesPerSecond)}, not measured</span>], ['Source', <span class="nominal-text">{dataSheet.source}</span>]]
    : [['Data sheet', 'none for this chip']];
  const rows = speed ? speedRows(speed) : probe && probeRows(probe);
  const at = speed ?? probe;
  return (
    <>
      {!rows && <p class="muted">No figure of this Mac is measured{node.metadata.labels?.['rooflet.dev/simulated'] === 'true' ? ': the machine is simulated.' : ' yet. The agent probes an idle Mac.'}</p>}
      <Facts of={[...(rows ?? []), ...(at ? [['Measured', <><Age at={at.measuredAt} /> ago, with {at.engine}</>] as [string, preact.ComponentChildren]] : []), ...spec]} />
    </>
  );
}

/** Figures of a probe, from earlier agents. */
function probeRows(probe: Probe): [string, preact.ComponentChildren][] {
  const rate = (figure: { medianBytesPerSecond: number; p10BytesPerSecond: number; p90BytesPerSecond: number; steady: boolean } | undefined) =>
    figure && <>{bandwidth(figure.medianBytesPerSecond)} <span class="muted">({number(figure.p10BytesPerSecond / 1e9)} to {number(figure.p90BytesPerSecond / 1e9)}{figure.steady ? '' : ', unsteady'})</span></>;
  const flops = (spread: { median: number } | undefined) => spread && `${number(spread.median / 1e12)} TFLOPS`;
  const rows: [string, preact.ComponentChildren][] = [
    ['Read', rate(probe.read)], ['Copy', rate(probe.copy)], ['Triad', rate(probe.triad)], ['4-bit matrix-vector', rate(probe.qmv)],
    ['Dense matrix product', flops(probe.matmulFlopsPerSecond)], ['4-bit matrix product', flops(probe.quantizedMatmulFlopsPerSecond)],
    ['Sustained load', probe.sustained && `${percent(probe.sustained.thermalFactor * 100)} of the first rate after ${seconds(probe.sustained.seconds)}`],
    ['Disk read', rate(probe.diskRead)],
    ['Plausibility', probe.plausibility?.message],
  ];
  return rows.filter(([, value]) => value);
}

function Question({ node, own, kind, onClose }: { node: FleetNode; own: ModelReplica[]; kind: Question; onClose: () => void }) {
  const name = node.metadata.name;
  const verb = { cordon: 'Cordon', uncordon: 'Uncordon', drain: 'Drain', remove: 'Remove' }[kind];
  const { running } = usage(node);
  const patch = kind === 'remove' ? undefined : schedulePatch(kind);
  return (
    <Dialog title={`${verb} ${name}?`} confirm={verb} danger={kind === 'drain' || kind === 'remove'} onClose={onClose} onConfirm={() => (patch ? schedule(node, patch) : remove(NODES, node))}>
      {kind === 'cordon' && <p>The scheduler places no new replica on this Mac. {plural(own.length, 'replica')} on it {own.length === 1 ? 'stays' : 'stay'}.</p>}
      {kind === 'uncordon' && <p>The scheduler may place replicas on this Mac again.{node.spec.drain && ' The drain ends.'}</p>}
      {kind === 'drain' && <p>The Mac is cordoned. {plural(running, 'in-flight request')} can finish.</p>}
      {kind === 'remove' && <p>The Mac leaves the fleet. {plural(running, 'in-flight request')} {running === 1 ? 'fails' : 'fail'}.</p>}
      <Preview of={{ node: name }} patch={patch} />
    </Dialog>
  );
}
