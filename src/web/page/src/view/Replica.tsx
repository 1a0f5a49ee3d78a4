// One replica: why it runs or does not, with the calculation of the admission, and its log.

import { useEffect, useRef, useState } from 'preact/hooks';
import type { Admission, ModelReplica } from '../api/kinds';
import { lines, request } from '../api/http';
import { explain } from '../fleet/explanation';
import { pendingReason, replicaHealth } from '../fleet/health';
import { parseQuantity } from '../format/quantity';
import { bytes, count, number, percent, plural, seconds, UNKNOWN, words } from '../format/text';
import { href } from '../router';
import { deploymentKey, replicas } from '../store';
import { Basis, Compare } from '../ui/Compare';
import { Conditions } from '../ui/Conditions';
import { messageOf } from '../ui/Dialog';
import { ObjectEvents } from '../ui/ObjectEvents';
import { Columns, Facts, Figure, ObjectHead, Panel } from '../ui/Panel';
import { Age, Empty, Loaded, State } from '../ui/State';
import { useTitle } from '../ui/use';

export function Replica({ namespace, name }: { namespace: string; name: string }) {
  useTitle(name);
  const replica = replicas.objects.value.items.get(`${namespace}/${name}`);
  return (
    <Loaded of={replicas}>
      {replica ? <Details replica={replica} /> : (
        <Empty title={`Namespace ${namespace} has no replica ${name}`}>It was replaced or deleted. <a href={href('replicas')}>Show all replicas</a></Empty>
      )}
    </Loaded>
  );
}

function Details({ replica }: { replica: ModelReplica }) {
  const { status, spec, metadata } = replica;
  const owner = deploymentKey(replica);
  return (
    <>
      <ObjectHead back={owner ? metadata.labels!['rooflet.dev/deployment']! : 'Replicas'} backTo={owner ? href('deployments', ...owner.split('/')) : href('replicas')} title={metadata.name} state={<State health={replicaHealth(replica)} />}>
        {spec.model.source} · {spec.nodeName ? <>on <a href={href('macs', spec.nodeName)}>{spec.nodeName}</a></> : 'without a Mac'} · <Age at={metadata.creationTimestamp} /> old
        {(status?.restarts ?? 0) > 0 && ` · ${status?.restarts} restarts`}
      </ObjectHead>
      <Why replica={replica} />
      <Columns
        main={<><Panel title="Admission" aside={status?.admission?.binding && <span class="muted">binding limit <b class="binding">{status.admission.binding}</b></span>}>
          {status?.admission ? <Working admission={status.admission} streams={spec.serving?.maxConcurrency} /> : <p class="muted">No Mac has checked this replica yet.</p>}
        </Panel>
        {spec.nodeName && <Panel title="Log"><Log replica={replica} /></Panel>}
        <Panel title="Events"><ObjectEvents of={replica} /></Panel></>}
        side={<><Panel title="Speed"><Speed replica={replica} /></Panel>
        {status?.lastTermination && (
          <Panel title="Last exit">
            <Facts of={[['Reason', words(status.lastTermination.reason)], ['Exit', status.lastTermination.signal !== undefined ? `signal ${status.lastTermination.signal}` : `code ${status.lastTermination.exitCode ?? UNKNOWN}`], ['Message', status.lastTermination.message], ['When', <><Age at={status.lastTermination.finishedAt} /> ago</>]]} />
          </Panel>
        )}
        <Panel title="Conditions"><Conditions of={status?.conditions} /></Panel></>}
      />
    </>
  );
}

/** Explains why a replica does not run, and what would admit it. */
export function Why({ replica }: { replica: ModelReplica }) {
  const reason = pendingReason(replica);
  if (!reason || replica.status?.phase === 'Ready') return null;
  const { summary, reasons, remedies } = explain(reason.message);
  const all = [...remedies, ...(replica.status?.admission?.suggestions ?? [])];
  return (
    <section class="why" aria-label={`Why ${replica.metadata.name} does not run`}>
      <h2>{words(reason.reason)}</h2>
      <p>{summary}{reasons.length > 0 ? ':' : '.'}</p>
      {reasons.length > 0 && <ul class="why-reasons">{reasons.map((entry, index) => <li key={index}>{entry.where && <b>{entry.where}</b>} <span>{entry.why}</span></li>)}</ul>}
      {all.length > 0 && (
        <>
          <h3>Smallest changes that admit it</h3>
          <ol class="remedies">{all.map((remedy) => <li key={remedy}><code>{remedy}</code></li>)}</ol>
        </>
      )}
    </section>
  );
}

function Working({ admission, streams }: { admission: Admission; streams?: number }) {
  const { memory, context, speed, disk } = admission;
  const total = memory.weightsBytes + memory.kvBytes + memory.activationBytes + memory.runtimeBytes;
  const terms: [string, number, string][] = [
    ['Weights', memory.weightsBytes, 'weights'],
    ['KV cache', memory.kvBytes, 'kv'],
    ['Activations', memory.activationBytes, 'activation'],
    ['Runtime', memory.runtimeBytes, 'runtime'],
  ];
  const scale = Math.max(total, memory.freeBytes, 1);
  return (
    <div class="working">
      <div class="stack" role="img" aria-label={`${terms.map(([label, value]) => `${label} ${bytes(value)}`).join(', ')}; ${bytes(memory.freeBytes)} was free`}>
        {terms.map(([label, value, kind]) => <i key={label} class={kind} style={{ width: `${(100 * value) / scale}%` }} title={`${label}: ${bytes(value)}`} />)}
      </div>
      <table class="sum" aria-label="Memory of the replica">
        <tbody>
          {terms.map(([label, value, kind]) => <tr key={label}><th scope="row"><i class={`key ${kind}`} />{label}{kind === 'kv' && context && <span class="muted"> {streams ?? UNKNOWN} streams × {count(context.askedTokens)} tokens</span>}</th><td>{bytes(value)}</td></tr>)}
          <tr class="total"><th scope="row">Reserved</th><td>{bytes(total)}</td></tr>
          <tr><th scope="row">Free for it<span class="muted"> of {bytes(memory.limitBytes)} allocatable</span></th><td>{bytes(memory.freeBytes)}</td></tr>
        </tbody>
      </table>
      <Facts
        of={[
          ['Result', admission.admitted ? <span class="state good"><i class="dot" />admitted</span> : <span class="state bad"><i class="dot" />rejected</span>],
          ['Context', context ? `${count(context.askedTokens)} asked; ${count(context.fitsTokens)} would fit; the model allows ${count(context.modelTokens)}` : UNKNOWN],
          ['Bandwidth', `${percent(admission.chipTimePercent)} reserved of ${percent(admission.freeChipTimePercent)} free`],
          ['Speed at full load', speed ? <>{number(speed.tokensPerSecond.p50)} tok/s <span class="muted">({number(speed.tokensPerSecond.p10)} to {number(speed.tokensPerSecond.p90)})</span> <Basis of={speed.basis} /></> : UNKNOWN],
          ['Read per token', speed ? `${number(speed.bytesPerToken / 1e9)} GB` : UNKNOWN],
          ['First token', speed ? <>{seconds(speed.timeToFirstTokenSeconds.p50)} <span class="muted">for {count(speed.promptTokens)} tokens</span> <Basis of={speed.timeToFirstTokenBasis} /></> : UNKNOWN],
          ...(disk ? [['Disk', `${bytes(disk.requiredBytes)} of ${bytes(disk.freeBytes)} free`] as [string, string]] : []),
        ]}
      />
      {(admission.refusals?.length ?? 0) > 0 && <ul class="problems">{admission.refusals!.map((text) => <li key={text}>{text}</li>)}</ul>}
    </div>
  );
}

function Speed({ replica }: { replica: ModelReplica }) {
  const { measured, admission, requests } = replica.status ?? {};
  const predicted = measured?.predicted;
  const speed = parseQuantity(measured?.tokensPerSecond);
  const first = parseQuantity(measured?.timeToFirstTokenSeconds);
  const predictedSpeed = predicted?.tokensPerSecond ?? admission?.speed?.tokensPerSecond;
  const predictedFirst = predicted?.timeToFirstTokenSeconds ?? admission?.speed?.timeToFirstTokenSeconds;
  return (
    <>
      <dl class="figures two">
        <Figure label="Measured" value={number(speed)} unit="tok/s" note={measured ? plural(measured.requests, 'request') : 'nothing measured yet'} />
        <Figure label="Predicted" value={<span class="predicted-value">{number(predictedSpeed?.p50)}</span>} unit="tok/s" note={<>{!predicted && admission?.speed && 'at full load '}<Basis of={predicted?.basis ?? admission?.speed?.basis} /></>} />
      </dl>
      <Compare predicted={predictedSpeed} measured={speed} unit="tokens/s" />
      <dl class="figures two">
        <Figure label="Measured TTFT" value={seconds(first)} />
        <Figure label="Predicted TTFT" value={<span class="predicted-value">{seconds(predictedFirst?.p50)}</span>} />
      </dl>
      <Compare predicted={predictedFirst} measured={first} unit="seconds" />
      <Facts of={[
        ['Requests', requests ? `${requests.running} in flight, ${requests.waiting} waiting` : UNKNOWN],
        ['Served', requests ? `${count(requests.completed)} completed, ${count(requests.failed)} failed` : UNKNOWN],
        ['Idle', requests?.idleSince ? <Age at={requests.idleSince} /> : UNKNOWN],
      ]} />
    </>
  );
}

const MAX_LINES = 500;

function Log({ replica }: { replica: ModelReplica }) {
  const [text, setText] = useState<string[]>();
  const [following, setFollowing] = useState(false);
  const [problem, setProblem] = useState<string>();
  const frame = useRef<HTMLPreElement>(null);
  const { namespace, name, uid } = replica.metadata;
  useEffect(() => {
    const stop = new AbortController();
    setProblem(undefined);
    const read = async () => {
      const response = await request(`/proxy/logs/${encodeURIComponent(namespace ?? 'default')}/${encodeURIComponent(name)}?tailLines=200&follow=${following}`, { signal: stop.signal });
      let found: string[] = [];
      let scheduled = false;
      const show = () => {
        scheduled = false;
        setText(found);
      };
      for await (const line of lines(response)) {
        found = [...found, line].slice(-MAX_LINES);
        if (!scheduled) {
          scheduled = true;
          requestAnimationFrame(show);
        }
      }
      show();
    };
    read().catch((error: unknown) => !stop.signal.aborted && setProblem(messageOf(error)));
    return () => stop.abort();
  }, [namespace, name, uid, following]);
  useEffect(() => {
    const element = frame.current;
    if (element && following) element.scrollTop = element.scrollHeight;
  }, [text]);
  return (
    <>
      <div class="log-head">
        <label class="check"><input type="checkbox" checked={following} onChange={(event) => setFollowing(event.currentTarget.checked)} /> Follow</label>
        {problem && <span class="problem" role="alert">{problem}</span>}
      </div>
      <pre ref={frame} class="log" tabIndex={0} aria-label={`Log of ${name}`}>{problem ? text?.join('\n') : !text ? 'Loading…' : text.join('\n') || 'The log is empty.'}</pre>
    </>
  );
}
