// Writes of the page. The API server checks the user's rights.

import { json, send } from './api/http';
import type { FleetNode, KubeObject, ModelDeployment, ModelRevision } from './api/kinds';
import { serverNow } from './clock';
import { API, DEPLOYMENTS, namespacePath, NODES, objectPath, type Resource } from './api/resources';
import { patchOf, unavailable, undoPatch, type Action } from './fleet/rollout';
import { documents, type Identity } from './format/yaml';
import { Problem } from './api/problem';

const MERGE_PATCH = 'application/merge-patch+json';
const APPLY_PATCH = 'application/apply-patch+yaml';
const FIELD_MANAGER = 'rooflet-web';
/** Attempts after conflicts, as `rooflet rollout` makes. */
const MAX_TRIES = 5;

function patchDeployment(deployment: ModelDeployment, patch: unknown, subresource = ''): Promise<unknown> {
  const path = objectPath(DEPLOYMENTS, deployment.metadata.name, deployment.metadata.namespace);
  return send('PATCH', `${path}${subresource}?fieldManager=${FIELD_MANAGER}`, patch, MERGE_PATCH);
}

export function scale(deployment: ModelDeployment, replicas: number): Promise<unknown> {
  return patchDeployment(deployment, { spec: { replicas } }, '/scale');
}

/** Sends the patch of the deployment. After a conflict, it is computed again from the newest object. */
async function patchNewest(deployment: ModelDeployment, action: Action | 'undo', patch: (newest: ModelDeployment) => unknown): Promise<void> {
  let newest = deployment;
  for (let tries = MAX_TRIES; ; tries--) {
    const reason = unavailable(newest, action);
    if (reason) throw new Problem('rejected', `Not possible now: ${reason}.`);
    try {
      await patchDeployment(newest, patch(newest));
      return;
    } catch (error) {
      if (!(error instanceof Problem) || error.kind !== 'conflict' || tries <= 1) throw error;
      newest = await json<ModelDeployment>(objectPath(DEPLOYMENTS, deployment.metadata.name, deployment.metadata.namespace));
    }
  }
}

/** Returns the patch of an action now. */
export function patchNow(deployment: ModelDeployment, action: Action): unknown {
  return patchOf(deployment, action, new Date(serverNow()));
}

export function rollout(deployment: ModelDeployment, action: Action): Promise<void> {
  return patchNewest(deployment, action, (newest) => patchNow(newest, action));
}

export function undo(deployment: ModelDeployment, revision: ModelRevision): Promise<void> {
  return patchNewest(deployment, 'undo', (newest) => {
    const patch = undoPatch(newest, revision);
    if (!patch) throw new Problem('rejected', `The current template already matches revision ${revision.spec.revision}.`);
    return patch;
  });
}

/** Returns the patch that cordons, uncordons or drains a Mac. */
export function schedulePatch(kind: 'cordon' | 'uncordon' | 'drain'): unknown {
  return { spec: { unschedulable: kind !== 'uncordon', drain: kind === 'drain' || null } };
}

export function schedule(node: FleetNode, patch: unknown): Promise<unknown> {
  return send('PATCH', `${objectPath(NODES, node.metadata.name)}?fieldManager=${FIELD_MANAGER}`, patch, MERGE_PATCH);
}

export function create<T>(resource: Resource, namespace: string, body: unknown): Promise<T> {
  return send<T>('POST', `${namespacePath(resource, namespace)}?fieldManager=${FIELD_MANAGER}`, body);
}

/** Deletes an object. It is no problem if another user has deleted it. */
export function remove(resource: Resource, object: KubeObject): Promise<unknown> {
  const path = objectPath(resource, object.metadata.name, object.metadata.namespace);
  // An object that was created again with the same name is kept.
  const body = JSON.stringify({ apiVersion: 'v1', kind: 'DeleteOptions', preconditions: { uid: object.metadata.uid } });
  return json(path, { method: 'DELETE', body, headers: { 'Content-Type': 'application/json' } }).catch((error: unknown) => {
    if (!(error instanceof Problem && error.kind === 'not-found')) throw error;
  });
}

/** Object before and after an apply. */
export interface Applied {
  identity: Identity;
  before?: KubeObject;
  after: KubeObject;
}

interface ApiResource {
  name: string;
  kind: string;
  namespaced: boolean;
}

async function resourcePath({ apiVersion, kind, name, namespace }: Identity): Promise<string> {
  const group = apiVersion.includes('/') ? `/apis/${apiVersion}` : `/api/${apiVersion}`;
  const list = await json<{ resources: ApiResource[] }>(`${API}${group}`).catch((error: unknown) => {
    if (error instanceof Problem && error.kind === 'not-found') throw new Problem('rejected', `${kind} ${name}: the API server has no apiVersion ${apiVersion}`);
    throw error;
  });
  const resource = list.resources.find((entry) => entry.kind === kind && !entry.name.includes('/'));
  if (!resource) throw new Problem('rejected', `${kind} ${name}: the API server has no kind ${kind} in ${apiVersion}`);
  const scope = resource.namespaced ? `/namespaces/${encodeURIComponent(namespace ?? 'default')}` : '';
  return `${API}${group}${scope}/${resource.name}/${encodeURIComponent(name)}`;
}

/** Applies a YAML text with server-side apply, or checks it with a dry run. */
export async function apply(text: string, dryRun: boolean): Promise<Applied[]> {
  const parts = documents(text);
  if (parts.length === 0) throw new Problem('rejected', 'The text contains no object.');
  const applied: Applied[] = [];
  for (const part of parts) {
    if (!part.identity) throw new Problem('rejected', part.problem ?? 'A document has no identity.');
    const path = await resourcePath(part.identity);
    const before = await json<KubeObject>(path).catch((error: unknown) => {
      if (error instanceof Problem && error.kind === 'not-found') return undefined;
      throw error;
    });
    const query = `fieldManager=${FIELD_MANAGER}&fieldValidation=Strict${dryRun ? '&dryRun=All' : ''}`;
    const after = await send<KubeObject>('PATCH', `${path}?${query}`, part.text, APPLY_PATCH);
    applied.push({ identity: part.identity, before, after });
  }
  return applied;
}
