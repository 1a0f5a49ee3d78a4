// State of Macs, deployments and replicas in one word and one sentence. Pure.

import { condition, type Condition, type FleetNode, type ModelDeployment, type ModelReplica } from '../api/kinds';
import { words } from '../format/text';

export type Level = 'good' | 'busy' | 'warn' | 'bad' | 'idle';

export interface Health {
  level: Level;
  label: string;
  detail?: string;
}

/** Conditions of a FleetNode for which True is the normal state. */
const NORMALLY_TRUE = new Set(['Ready', 'ProbeFresh', 'Drained']);
/** Conditions that describe a preference or a fact, not a problem. */
const NOTES = new Set(['ProbeFresh', 'Drained', 'VersionSkew']);

/** Returns the conditions of a Mac that differ from the normal state, problems first. */
export function notable(node: FleetNode): Condition[] {
  return (node.status?.conditions ?? []).filter((entry) => {
    if (entry.type === 'Ready' || NOTES.has(entry.type)) return false;
    return NORMALLY_TRUE.has(entry.type) ? entry.status === 'False' : entry.status === 'True';
  });
}

/** Remembers the result for each object. Objects are never changed, only replaced. */
function once<T extends object>(compute: (object: T) => Health): (object: T) => Health {
  const known = new WeakMap<T, Health>();
  return (object) => {
    let found = known.get(object);
    if (!found) known.set(object, (found = compute(object)));
    return found;
  };
}

export const nodeHealth = once((node: FleetNode): Health => {
  const ready = condition(node.status?.conditions, 'Ready');
  if (node.metadata.deletionTimestamp) return { level: 'idle', label: 'Deleting' };
  if (!ready) return { level: 'idle', label: 'Joining', detail: 'the agent has not reported a status' };
  if (ready.status !== 'True') {
    return { level: 'bad', label: ready.status === 'Unknown' ? 'Silent' : 'Not ready', detail: ready.message };
  }
  if (node.spec.drain) {
    const drained = condition(node.status?.conditions, 'Drained');
    return { level: 'warn', label: drained?.status === 'True' ? 'Drained' : 'Draining', detail: drained?.message };
  }
  const [first] = notable(node);
  if (first) return { level: 'warn', label: words(first.type), detail: first.message };
  if (node.spec.unschedulable) return { level: 'warn', label: 'Cordoned', detail: 'no new replica is scheduled' };
  return { level: 'good', label: 'Ready' };
});

export const replicaHealth = once((replica: ModelReplica): Health => {
  const { status } = replica;
  const phase = status?.phase ?? 'Pending';
  if (replica.metadata.deletionTimestamp) return { level: 'idle', label: 'Terminating' };
  if (phase === 'Failed') return { level: 'bad', label: 'Failed', detail: pendingReason(replica)?.message };
  if (phase === 'Pending') {
    const reason = pendingReason(replica);
    return { level: reason ? 'bad' : 'busy', label: reason ? words(reason.reason) : 'Pending', detail: reason?.message };
  }
  if (phase === 'Ready') {
    const ready = condition(status?.conditions, 'Ready');
    return ready?.status === 'False'
      ? { level: 'bad', label: words(ready.reason), detail: ready.message }
      : { level: 'good', label: 'Ready' };
  }
  if (phase === 'Pulling' && status?.download && status.download.totalBytes > 0) {
    const share = Math.floor((100 * status.download.bytes) / status.download.totalBytes);
    return { level: 'busy', label: `Pulling ${share} %` };
  }
  return { level: phase === 'Succeeded' || phase === 'Draining' ? 'idle' : 'busy', label: phase };
});

/** Returns the condition that explains why a replica does not run. */
export function pendingReason(replica: ModelReplica): Condition | undefined {
  for (const type of ['Scheduled', 'Admitted', 'ArtifactsReady', 'Loaded']) {
    const found = condition(replica.status?.conditions, type);
    if (found?.status === 'False' && found.message !== '') return found;
  }
  return undefined;
}

export const deploymentHealth = once((deployment: ModelDeployment): Health => {
  const conditions = deployment.status?.conditions;
  const wanted = deployment.spec.replicas ?? 1;
  const ready = deployment.status?.readyReplicas ?? 0;
  if (deployment.metadata.deletionTimestamp) return { level: 'idle', label: 'Deleting' };
  const aborted = deployment.status?.rollout?.aborted;
  if (aborted) return { level: 'bad', label: 'Rolled back', detail: aborted.message };
  for (const type of ['Admitted', 'Scheduled']) {
    const found = condition(conditions, type);
    if (found?.status === 'False') return { level: 'bad', label: words(found.reason), detail: found.message };
  }
  const progressing = condition(conditions, 'Progressing');
  if (deployment.spec.paused) return { level: 'warn', label: 'Paused', detail: progressing?.message };
  if (progressing?.status === 'False') return { level: 'bad', label: words(progressing.reason), detail: progressing.message };
  const degraded = condition(conditions, 'Degraded');
  if (degraded?.status === 'True') return { level: 'warn', label: words(degraded.reason), detail: degraded.message };
  const objectives = condition(conditions, 'ObjectivesMet');
  if (objectives?.status === 'False') return { level: 'warn', label: words(objectives.reason), detail: objectives.message };
  if (wanted === 0) return { level: 'idle', label: 'Scaled to zero' };
  if (inRollout(deployment)) return { level: 'busy', label: words(progressing?.reason ?? 'Progressing'), detail: progressing?.message };
  if (ready < wanted) return { level: 'busy', label: 'Starting', detail: condition(conditions, 'Ready')?.message };
  return { level: 'good', label: 'Ready' };
});

/** Returns true while the newest revision replaces another one. */
export function inRollout(deployment: ModelDeployment): boolean {
  const rollout = deployment.status?.rollout;
  return rollout?.revision !== undefined && rollout.stableRevision !== undefined
    && rollout.revision !== rollout.stableRevision && rollout.aborted === undefined;
}
