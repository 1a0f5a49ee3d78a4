// Paths of the API's resources.

const GROUP = '/apis/rooflet.dev/v1alpha1';

export interface Resource {
  /** Plural name in paths. */
  plural: string;
  /** Kind of the objects. */
  kind: string;
  group: string;
  namespaced: boolean;
}

const custom = (plural: string, kind: string, namespaced = true): Resource => ({ plural, kind, group: GROUP, namespaced });

export const NODES = custom('fleetnodes', 'FleetNode', false);
export const DEPLOYMENTS = custom('modeldeployments', 'ModelDeployment');
export const REPLICAS = custom('modelreplicas', 'ModelReplica');
export const REVISIONS = custom('modelrevisions', 'ModelRevision');
export const CLAIMS = custom('performanceclaims', 'PerformanceClaim');
export const PLANS = custom('capacityplans', 'CapacityPlan');
export const KEYS = custom('apikeys', 'APIKey');
export const EVENTS: Resource = { plural: 'events', kind: 'Event', group: '/api/v1', namespaced: true };

export const API = '/proxy/api';

/** Returns the path of all objects of a resource, in all namespaces. */
export function listPath(resource: Resource): string {
  return `${API}${resource.group}/${resource.plural}`;
}

/** Returns the path of an object. */
export function objectPath(resource: Resource, name: string, namespace?: string): string {
  const scope = resource.namespaced ? `/namespaces/${encodeURIComponent(namespace ?? 'default')}` : '';
  return `${API}${resource.group}${scope}/${resource.plural}/${encodeURIComponent(name)}`;
}

/** Returns the path of the objects of a namespace. */
export function namespacePath(resource: Resource, namespace: string): string {
  return `${API}${resource.group}/namespaces/${encodeURIComponent(namespace)}/${resource.plural}`;
}
