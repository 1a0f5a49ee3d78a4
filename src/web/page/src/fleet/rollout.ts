// Rollouts: course, throughput floor, and the patches of `rooflet rollout`. Pure.

import { condition, type CanaryStep, type ModelDeployment, type ModelRevision } from '../api/kinds';
import { inRollout } from './health';
import { number, percent } from '../format/text';

const PROMOTE_ANNOTATION = 'rooflet.dev/promote';
const ABORT_ANNOTATION = 'rooflet.dev/abort';
const CHANGE_CAUSE_ANNOTATION = 'kubernetes.io/change-cause';

export interface Step {
  label: string;
  state: 'done' | 'current' | 'next';
}

/** Returns the steps of a canary with their states. Empty for other strategies. */
export function canarySteps(deployment: ModelDeployment): Step[] {
  const strategy = deployment.spec.strategy;
  if (strategy?.type !== 'Canary') return [];
  const rollout = deployment.status?.rollout;
  const steps = strategy.canary?.steps ?? [];
  const at = inRollout(deployment) ? (rollout?.step ?? 0) : rollout?.aborted ? (rollout.step ?? 0) : steps.length;
  return steps.map((step, index) => ({
    label: stepLabel(step),
    state: index < at ? 'done' : index === at ? 'current' : 'next',
  }));
}

function stepLabel(step: CanaryStep): string {
  if (step.setWeight !== undefined) return `${step.setWeight} % of requests`;
  if (step.pause) return step.pause.duration ? `pause ${step.pause.duration}` : 'pause until promoted';
  return 'analysis';
}

export interface Floor {
  /** Tokens per second that a rollout keeps available. Unset without a reference. */
  tokensPerSecond?: number;
  /** Setting, such as `80%`. */
  setting: string;
}

/** Returns the throughput floor of a deployment, or undefined if it has none. */
export function throughputFloor(deployment: ModelDeployment): Floor | undefined {
  const setting = deployment.spec.strategy?.rollingUpdate?.minThroughput;
  if (setting === undefined) return undefined;
  const share = /^(\d+(?:\.\d+)?)%$/.exec(String(setting));
  if (!share) return { tokensPerSecond: Number(setting), setting: `${setting} tok/s` };
  const reference = deployment.status?.rollout?.referenceTokensPerSecond;
  return {
    tokensPerSecond: reference === undefined
      ? undefined
      : (reference * (deployment.spec.replicas ?? 1) * Number(share[1])) / 100,
    setting: percent(Number(share[1])),
  };
}

export type Action = 'pause' | 'resume' | 'promote' | 'promote-full' | 'abort' | 'restart';

/** Merge patch with the version of the deployment, so that it fails after a concurrent change. */
export interface Patch {
  metadata: { resourceVersion?: string; annotations?: Record<string, string | null> };
  spec?: Record<string, unknown>;
}

/** Returns why an action is not possible now, or undefined if it is. */
export function unavailable(deployment: ModelDeployment, action: Action | 'undo'): string | undefined {
  const { spec, status } = deployment;
  switch (action) {
    case 'pause':
      return spec.paused ? 'rollouts are paused already' : undefined;
    case 'resume':
      return spec.paused ? undefined : 'rollouts are not paused';
    case 'restart':
    case 'undo':
      return spec.paused ? 'rollouts are paused; resume first' : undefined;
    case 'promote':
    case 'promote-full':
    case 'abort':
      if (status?.observedGeneration !== deployment.metadata.generation) return 'the controller has not observed the newest template yet';
      if (!inRollout(deployment)) return 'no rollout is in progress';
      if (action === 'promote') {
        if (status?.rollout?.step === undefined) return 'no canary is in progress';
        const progressing = condition(status?.conditions, 'Progressing');
        if (progressing?.reason === 'ThroughputFloor') return `no step waits for a promotion: ${progressing.message}`;
      }
      return undefined;
  }
}

/** Returns the patch of an action, as `rooflet rollout` sends it. */
export function patchOf(deployment: ModelDeployment, action: Action, now: Date): Patch {
  const metadata = { resourceVersion: deployment.metadata.resourceVersion };
  const { revision = '', startedAt = '', step = 0 } = deployment.status?.rollout ?? {};
  const rollout = `${revision}/${startedAt}`;
  const annotated = (key: string, value: string): Patch => ({ metadata: { ...metadata, annotations: { [key]: value } } });
  switch (action) {
    case 'pause':
      return { metadata, spec: { paused: true } };
    case 'resume':
      return { metadata, spec: { paused: false } };
    case 'promote':
      return annotated(PROMOTE_ANNOTATION, `${rollout}/${step}`);
    case 'promote-full':
      return annotated(PROMOTE_ANNOTATION, `${rollout}/full`);
    case 'abort':
      return annotated(ABORT_ANNOTATION, rollout);
    case 'restart':
      return { metadata, spec: { restartedAt: now.toISOString().replace(/\.\d+Z$/, 'Z') } };
  }
}

/** Returns the patch that restores a revision's template, or undefined if nothing differs. */
export function undoPatch(deployment: ModelDeployment, revision: ModelRevision): Patch | undefined {
  const current = { model: deployment.spec.model, serving: deployment.spec.serving, restartedAt: deployment.spec.restartedAt };
  const wanted = { model: revision.spec.model, serving: revision.spec.serving, restartedAt: revision.spec.restartedAt };
  const spec = mergeDiff(current, wanted) as Record<string, unknown> | undefined;
  if (spec === undefined) return undefined;
  const metadata: Patch['metadata'] = { resourceVersion: deployment.metadata.resourceVersion };
  const before = deployment.metadata.annotations?.[CHANGE_CAUSE_ANNOTATION];
  const after = revision.metadata.annotations?.[CHANGE_CAUSE_ANNOTATION];
  if (before !== after) metadata.annotations = { [CHANGE_CAUSE_ANNOTATION]: after ?? null };
  return { metadata, spec };
}

/**
 * Returns whether the controller has rejected the current template, so that the newest revision has another one
 * and a rollback to it is useful.
 */
export function isRejected(deployment: ModelDeployment): boolean {
  return deployment.status?.rollout?.refused !== undefined;
}

/** Returns the JSON merge patch from one value to another, or undefined if they are equal. */
export function mergeDiff(from: unknown, to: unknown): unknown {
  if (!isObject(from) || !isObject(to)) return JSON.stringify(from) === JSON.stringify(to) ? undefined : to;
  const patch: Record<string, unknown> = {};
  for (const key of new Set([...Object.keys(from), ...Object.keys(to)])) {
    if (to[key] === undefined) {
      if (from[key] !== undefined) patch[key] = null;
    } else {
      const inner = mergeDiff(from[key], to[key]);
      if (inner !== undefined) patch[key] = inner;
    }
  }
  return Object.keys(patch).length === 0 ? undefined : patch;
}

function isObject(value: unknown): value is Record<string, unknown> {
  return value !== null && typeof value === 'object' && !Array.isArray(value);
}

/** Returns the rule of an action, for the question before it. The preview shows the replicas. */
export function consequence(deployment: ModelDeployment, action: Action): string {
  const floor = throughputFloor(deployment)?.tokensPerSecond;
  const kept = floor === undefined ? '' : ` At least ${number(floor)} tok/s stay available.`;
  switch (action) {
    case 'abort':
      return `The controller stops the rollout of ${deployment.status?.rollout?.revision}.${kept}`;
    case 'promote':
      return 'The rollout continues with the next step of the canary.';
    case 'promote-full':
      return `The rollout skips all remaining steps and checks.${kept}`;
    case 'restart':
      return `The controller replaces all replicas with the same template.${kept}`;
    case 'pause':
      return 'Replicas keep their revision until you resume. Scaling continues.';
    case 'resume':
      return 'Rollouts of template changes continue.';
  }
}
