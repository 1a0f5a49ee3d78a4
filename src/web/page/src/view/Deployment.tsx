// One deployment: speed, rollout, replicas, history, actions.

import { useEffect, useMemo, useState } from 'preact/hooks';
import type { ModelDeployment, ModelReplica, ModelRevision } from '../api/kinds';
import * as actions from '../actions';
import { DEPLOYMENTS } from '../api/resources';
import { deploymentHealth, inRollout, replicaHealth } from '../fleet/health';
import { canarySteps, consequence, isRejected, throughputFloor, unavailable, undoPatch, type Action } from '../fleet/rollout';
import { diffLines } from '../format/diff';
import { parsePair } from '../format/quantity';
import { number, percent, plural, seconds, short, UNKNOWN } from '../format/text';
import { toYaml } from '../format/yaml';
import { href } from '../router';
import { now } from '../clock';
import { empty, historyVersion, loadHistory, seriesOf, withHistory } from '../samples';
import { deployments, replicas, replicasOf, revisions } from '../store';
import { Chart } from '../ui/Chart';
import { Basis } from '../ui/Compare';
import { Conditions } from '../ui/Conditions';
import { Dialog } from '../ui/Dialog';
import { DiffView } from '../ui/DiffView';
import { ObjectEvents } from '../ui/ObjectEvents';
import { Columns, Facts, Figure, ObjectHead, Panel } from '../ui/Panel';
import { Period, usePast } from '../ui/Past';
import { Preview } from '../ui/Preview';
import { Age, Empty, Loaded, State } from '../ui/State';
import { useAllowed, useTitle, useWatch } from '../ui/use';
import { modelText } from './Deployments';
import { ReplicaTable } from './Replicas';
import { Why } from './Replica';

type Question = { kind: 'scale' } | { kind: 'delete' } | { kind: 'rollout'; action: Action } | { kind: 'undo'; revision: ModelRevision };

export function Deployment({ namespace, name }: { namespace: string; name: string }) {
  useTitle(name);
  useWatch(revisions);
  const key = `${namespace}/${name}`;
  const placed = replicas.objects.value;
  const deployment = deployments.objects.value.items.get(key);
  const own = useMemo(() => [...replicasOf(key).values()], [placed, key]);
  const known = revisions.objects.value;
  const history = useMemo(
    () => [...known.items.values()]
      .filter((revision) => revision.metadata.ownerReferences?.some((owner) => owner.uid === deployment?.metadata.uid))
      .sort((a, b) => b.spec.revision - a.spec.revision),
    [known, deployment?.metadata.uid],
  );
  return (
    <Loaded of={[deployments, replicas]}>
      {deployment ? <Details deployment={deployment} own={own} history={history} /> : (
        <Empty title={`Namespace ${namespace} has no deployment ${name}`}><a href={href('deployments')}>Show all deployments</a></Empty>
      )}
    </Loaded>
  );
}

const ROLLOUT_ACTIONS: [Action, string][] = [['promote', 'Promote'], ['promote-full', 'Promote fully'], ['abort', 'Abort']];

function Details({ deployment, own, history }: { deployment: ModelDeployment; own: ModelReplica[]; history: ModelRevision[] }) {
  const [question, setQuestion] = useState<Question>();
  const namespace = deployment.metadata.namespace ?? 'default';
  const mayPatch = useAllowed('patch', 'modeldeployments', namespace);
  const mayScale = useAllowed('patch', 'modeldeployments', namespace, 'scale');
  const mayDelete = useAllowed('delete', 'modeldeployments', namespace);
  const { spec } = deployment;
  const ask = (action: Action) => () => setQuestion({ kind: 'rollout', action });
  const pending = own.find((replica) => replicaHealth(replica).level === 'bad');
  return (
    <>
      <ObjectHead
        back="Deployments" backTo={href('deployments')} title={deployment.metadata.name} state={<State health={deploymentHealth(deployment)} />}
        actions={(mayPatch || mayScale || mayDelete) && (
          <>
            {mayScale && <button type="button" class="button" onClick={() => setQuestion({ kind: 'scale' })}>Scale</button>}
            {mayPatch && <button type="button" class="button" onClick={ask(spec.paused ? 'resume' : 'pause')}>{spec.paused ? 'Resume' : 'Pause'}</button>}
            {mayPatch && inRollout(deployment) && ROLLOUT_ACTIONS.map(([action, label]) => {
              const reason = unavailable(deployment, action);
              // A canary that waits needs this decision next.
              const isNext = action === 'promote' && reason === undefined;
              return <button key={action} type="button" class={isNext ? 'button primary' : 'button'} disabled={reason !== undefined} title={reason} onClick={ask(action)}>{label}</button>;
            })}
            {mayPatch && <button type="button" class="button" disabled={spec.paused} onClick={ask('restart')}>Restart</button>}
            {mayDelete && <button type="button" class="button danger-text" onClick={() => setQuestion({ kind: 'delete' })}>Delete</button>}
          </>
        )}
      >
        {modelText(deployment)} · served as <code>{spec.serving?.name ?? deployment.metadata.name}</code> · {plural(spec.replicas ?? 1, 'replica')}
        {namespace !== 'default' && ` · namespace ${namespace}`}
      </ObjectHead>
      {pending && <Why replica={pending} />}
      <Columns
        main={<Panel title="Speed" aside={<PredictionBasis own={own} />}><Speed deployment={deployment} own={own} /></Panel>}
        side={<Panel title="Rollout"><Course deployment={deployment} own={own} history={history} /></Panel>}
      />
      <Panel title="Replicas" aside={<span class="muted">{deployment.status?.readyReplicas ?? 0} of {spec.replicas ?? 1} ready</span>}>
          <ReplicaTable rows={own} label={`Replicas of ${deployment.metadata.name}`} empty={<Empty title={spec.replicas === 0 ? 'Scaled to zero' : 'No replicas yet'} />} />
      </Panel>
      <Columns
        main={<><Panel title="History"><History deployment={deployment} history={history} mayUndo={mayPatch} onUndo={(revision) => setQuestion({ kind: 'undo', revision })} /></Panel><Panel title="Events"><ObjectEvents of={deployment} /></Panel></>}
        side={<Panel title="Conditions"><Conditions of={deployment.status?.conditions} /></Panel>}
      />
      {question && <Ask deployment={deployment} own={own} question={question} onClose={() => setQuestion(undefined)} />}
    </>
  );
}

function PredictionBasis({ own }: { own: ModelReplica[] }) {
  const bases = new Set(own.map((replica) => replica.status?.measured?.predicted?.basis ?? replica.status?.admission?.speed?.basis).filter(Boolean));
  return <span class="muted">prediction {[...bases].map((basis) => <Basis key={basis} of={basis} />)}{bases.size === 0 && UNKNOWN}</span>;
}

function Speed({ deployment, own }: { deployment: ModelDeployment; own: ModelReplica[] }) {
  void now.value;
  void historyVersion.value;
  const { namespace = 'default', name, uid } = deployment.metadata;
  useEffect(() => void loadHistory(namespace, name), [namespace, name, uid]);
  const speed = parsePair(deployment.status?.tokensPerSecond);
  const first = parsePair(deployment.status?.timeToFirstToken);
  const objectives = deployment.spec.objectives;
  const [hours, setHours] = useState(0);
  const { history, problem } = usePast(hours ? `deployments/${encodeURIComponent(namespace)}/${encodeURIComponent(name)}?hours=${hours}` : undefined);
  const older = useMemo(() => history && withHistory(empty(), history), [history]);
  const series = hours ? older : seriesOf(`${namespace}/${name}`);
  const limit = (value: number | undefined) => (value === undefined ? [] : [{ label: 'objective', values: series!.times.map(() => value), look: 'limit' as const }]);
  const wantedSpeed = objectives?.decodeTokensPerSecond;
  return (
    <>
      <dl class="figures">
        <Figure label="Measured" value={number(speed.measured)} unit="tok/s" note="one stream" />
        <Figure label="Predicted" value={<span class="predicted-value">{number(speed.predicted)}</span>} unit="tok/s" note={accuracy(own)} />
        <Figure label="Measured TTFT" value={seconds(first.measured)} note="time to first token" />
        <Figure label="Predicted TTFT" value={<span class="predicted-value">{seconds(first.predicted)}</span>} />
      </dl>
      <Period hours={hours} onChange={setHours} />
      {problem && <p class="problem" role="alert">{problem}</p>}
      {series && series.times.length > 0 ? (
        <div class="charts">
          <Chart title="Tokens/s" times={series.times} format={number} mark={short} lines={[{ label: 'measured', values: series.measured, look: 'measured' }, { label: 'predicted', values: series.predicted, look: 'predicted' }, ...limit(wantedSpeed)]} />
          <Chart title="Time to first token" times={series.times} format={seconds} lines={[{ label: 'measured', values: series.firstTokenMeasured, look: 'measured' }, { label: 'predicted', values: series.firstTokenPredicted, look: 'predicted' }]} />
        </div>
      ) : !problem && <p class="muted">{hours ? 'Loading…' : 'No value yet.'}</p>}
    </>
  );
}

/** Compares measured and predicted speed of the same requests. */
function accuracy(own: ModelReplica[]): string {
  const ratios = own
    .map(({ status }) => Number(status?.measured?.tokensPerSecond) / (status?.measured?.predicted?.tokensPerSecond.p50 ?? NaN))
    .filter(Number.isFinite)
    .sort((a, b) => a - b);
  const middle = ratios[Math.floor(ratios.length / 2)];
  return middle === undefined ? 'nothing measured yet' : `measured is ${percent(100 * middle)} for the same requests`;
}

function Course({ deployment, own, history }: { deployment: ModelDeployment; own: ModelReplica[]; history: ModelRevision[] }) {
  const { status, spec } = deployment;
  const rollout = status?.rollout;
  const steps = canarySteps(deployment);
  const floor = throughputFloor(deployment);
  const current = rollout?.predictedTokensPerSecond;
  const max = 1.05 * Math.max(current ?? 0, floor?.tokensPerSecond ?? 0, (rollout?.referenceTokensPerSecond ?? 0) * (spec.replicas ?? 1));
  const at = (value: number) => (max > 0 ? (100 * value) / max : 0);
  const numberOf = (name: string | undefined) => history.find((revision) => revision.metadata.name === name)?.spec.revision;
  const onNew = own.filter((replica) => replica.metadata.labels?.['rooflet.dev/revision'] === rollout?.revision).length;
  const weight = status?.traffic?.find((share) => share.revision === rollout?.revision)?.weight;
  return (
    <>
      <Facts
        of={[
          ['Strategy', spec.strategy?.type ?? 'RollingUpdate'],
          ['Revision', inRollout(deployment)
            ? <>{numberOf(rollout?.stableRevision) ?? UNKNOWN} → {numberOf(rollout?.revision) ?? UNKNOWN}, {onNew} of {spec.replicas ?? 1} replaced</>
            : <>{numberOf(rollout?.revision) ?? UNKNOWN}, rolled out</>],
          ...(weight !== undefined ? [['New revision', `${weight} % of requests`] as [string, string]] : []),
          ['Started', <><Age at={rollout?.startedAt} /> ago</>],
          ...(rollout?.aborted ? [['Aborted', rollout.aborted.message] as [string, string]] : []),
          ...(rollout?.analysis ? [['Analysis', rollout.analysis] as [string, string]] : []),
        ]}
      />
      {steps.length > 0 && (
        <ol class="steps" aria-label="Steps of the canary">
          {steps.map((step, index) => <li key={index} class={step.state} aria-current={step.state === 'current' ? 'step' : undefined}>{step.label}</li>)}
        </ol>
      )}
      <div class="throughput">
        <div class="throughput-head"><span>Throughput</span><span><b>{number(current)}</b> <span class="muted">predicted tok/s, all streams busy</span></span></div>
        <div class="floor-bar">
          <i class="now" style={{ width: `${at(current ?? 0)}%` }} />
          {floor?.tokensPerSecond !== undefined && <i class="floor-mark" style={{ left: `${at(floor.tokensPerSecond)}%` }} />}
        </div>
        <p class="muted">{floor ? `Floor: ${floor.setting}${floor.tokensPerSecond === undefined ? '' : ` = ${number(floor.tokensPerSecond)} tok/s`}. A rollout never goes below it.` : 'No throughput floor is set (minThroughput).'}</p>
      </div>
    </>
  );
}

function History({ deployment, history, mayUndo, onUndo }: { deployment: ModelDeployment; history: ModelRevision[]; mayUndo: boolean; onUndo: (revision: ModelRevision) => void }) {
  const [shown, setShown] = useState<string>();
  const [chosen, setChosen] = useState<string>();
  if (history.length === 0) return <p class="muted">{revisions.sync.value === 'forbidden' ? 'You may not list revisions.' : 'No revision yet.'}</p>;
  const [current] = history;
  return (
    <ul class="history">
      {history.map((revision, index) => {
        const others = history.filter((other) => other !== revision);
        const older = history[index + 1] ?? others[0];
        const base = others.find((other) => other.metadata.name === chosen) ?? older;
        const open = shown === revision.metadata.name;
        // A revision has resolved fields, so its template differs from the deployment's also without a change.
        const same = (revision === current && !isRejected(deployment)) || undoPatch(deployment, revision) === undefined;
        return (
          <li key={revision.metadata.name}>
            <div class="history-row">
              <b>{revision.spec.revision}</b>
              <span class="history-name"><code>{revision.metadata.name}</code>{revision === current && <span class="tag">newest</span>}{deployment.status?.rollout?.stableRevision === revision.metadata.name && <span class="tag">stable</span>}</span>
              <span class="muted"><Age at={revision.metadata.creationTimestamp} /></span>
              <span class="history-actions">
                {older && <button type="button" class="button small" aria-expanded={open} onClick={() => { setShown(open ? undefined : revision.metadata.name); setChosen(undefined); }}>{open ? 'Hide' : older === history[index + 1] ? `Changes since ${older.spec.revision}` : 'Compare'}</button>}
                {mayUndo && !same && <button type="button" class="button small" disabled={deployment.spec.paused} onClick={() => onUndo(revision)}>Roll back to {revision.spec.revision}</button>}
              </span>
            </div>
            {open && base && (
              <>
                <label class="field"><span>Compare with revision</span><select value={base.metadata.name} onChange={(event) => setChosen(event.currentTarget.value)}>{others.map((other) => <option key={other.metadata.name} value={other.metadata.name}>{other.spec.revision}</option>)}</select></label>
                <DiffView lines={diffLines(template(base), template(revision))} />
              </>
            )}
          </li>
        );
      })}
    </ul>
  );
}

function template(revision: ModelRevision): string {
  const { revision: _, ...rest } = revision.spec;
  return toYaml(rest);
}

const LABELS: Record<Action, string> = { pause: 'Pause', resume: 'Resume', promote: 'Promote', 'promote-full': 'Promote fully', abort: 'Abort', restart: 'Restart' };

function Ask({ deployment, own, question, onClose }: { deployment: ModelDeployment; own: ModelReplica[]; question: Question; onClose: () => void }) {
  const { name, namespace = 'default' } = deployment.metadata;
  const now = deployment.spec.replicas ?? 1;
  const [wanted, setWanted] = useState(now);
  const action = question.kind === 'rollout' ? question.action : undefined;
  const patch = useMemo(() => (action ? actions.patchNow(deployment, action) : question.kind === 'undo' ? undoPatch(deployment, question.revision) : undefined), [question]);
  const preview = (change: unknown) => <Preview of={{ deployment: [namespace, name] }} patch={change} />;
  switch (question.kind) {
    case 'scale': {
      const isValid = Number.isInteger(wanted) && wanted >= 0;
      return (
        <Dialog title={`Scale ${name}`} confirm="Scale" danger={wanted === 0} disabled={wanted === now || !isValid} onClose={onClose} onConfirm={() => actions.scale(deployment, wanted)}>
          <label class="field"><span>Replicas</span><input type="number" min="0" max="10000" step="1" value={wanted} onInput={(event) => setWanted(event.currentTarget.valueAsNumber)} /></label>
          <p class="muted">
            {plural(now, 'replica')} now.
            {wanted === 0 && ' With 0 replicas, no request is served until the deployment is scaled up.'}
          </p>
          {isValid && wanted !== now && preview({ spec: { replicas: wanted } })}
        </Dialog>
      );
    }
    case 'delete':
      return (
        <Dialog title={`Delete ${name}?`} confirm="Delete" danger onClose={onClose} onConfirm={() => actions.remove(DEPLOYMENTS, deployment)}>
          <p>The deployment, its revisions and {plural(own.length, 'replica')} are deleted. You cannot undo this.</p>
          {preview(undefined)}
        </Dialog>
      );
    case 'undo':
      return (
        <Dialog title={`Roll back ${name} to revision ${question.revision.spec.revision}?`} confirm="Roll back" danger onClose={onClose} onConfirm={() => actions.undo(deployment, question.revision)}>
          {preview(patch)}
          <pre class="code" tabIndex={0} aria-label="Patch">{toYaml(undoPatch(deployment, question.revision)?.spec ?? {})}</pre>
        </Dialog>
      );
    case 'rollout': {
      const label = LABELS[question.action];
      return (
        <Dialog title={`${label} ${action === 'restart' ? name : `the rollout of ${name}`}?`} confirm={label} danger={action === 'abort' || action === 'promote-full'} onClose={onClose} onConfirm={() => actions.rollout(deployment, question.action)}>
          <p>{consequence(deployment, question.action)}</p>
          {preview(patch)}
        </Dialog>
      );
    }
  }
}
