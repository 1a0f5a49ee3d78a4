// The objects that the page shows, as signals. Changes are published once per frame, at most ten
// times per second, and less often if the page needs more time to show them.

import { batch, signal, type Signal } from '@preact/signals';
import {
  eventTime, type ApiKey, type CapacityPlan, type FleetNode, type KubeEvent, type KubeObject, type ModelDeployment, type ModelReplica, type ModelRevision, type PerformanceClaim,
} from './api/kinds';
import type { Problem } from './api/problem';
import type { Bound, Change, Objects } from './api/reducer';
import { CLAIMS, DEPLOYMENTS, EVENTS, KEYS, listPath, NODES, PLANS, REPLICAS, REVISIONS, type Resource } from './api/resources';
import { watch, type SyncState } from './api/watch';
import { serverNow } from './clock';
import { usageOf, type Usage } from './fleet/usage';

const PUBLISH_INTERVAL_MS = 100;
/** The page spends at most this share of the time on showing changes. */
const MAX_SHARE = 0.15;
/** A hidden page closes its watches after this time: a browser opens few connections per host. */
const HIDDEN_SECONDS = 30;

const unpublished = new Set<Collection<never>>();
let publishing = false;
let published = 0;
let interval = PUBLISH_INTERVAL_MS;

function publishSoon(): void {
  if (publishing) return;
  publishing = true;
  const wait = Math.max(0, published + interval - performance.now());
  const frame = () => (document.hidden ? publish() : requestAnimationFrame(publish));
  if (wait > 0) setTimeout(frame, wait);
  else frame();
}

function publish(): void {
  publishing = false;
  published = performance.now();
  batch(() => {
    for (const collection of unpublished) collection.publish();
    unpublished.clear();
  });
  // Runs after the components are rendered.
  setTimeout(() => {
    interval = Math.max(PUBLISH_INTERVAL_MS, (performance.now() - published) / MAX_SHARE);
  });
}

/** Objects of a resource. Watched while a view uses them. */
export class Collection<T extends KubeObject> {
  private readonly state: Objects<T> = { items: new Map(), resourceVersion: '' };
  /** Objects by name. A new value of the signal announces changes in the same map. */
  readonly objects: Signal<{ items: ReadonlyMap<string, T> }> = signal({ items: this.state.items });
  readonly sync: Signal<SyncState> = signal<SyncState>('stopped');
  readonly problem: Signal<Problem | undefined> = signal<Problem | undefined>(undefined);
  /** True after the first list. */
  readonly known: Signal<boolean> = signal(false);
  /** Time of the last sign of life, in milliseconds since 1970. */
  seenAt = 0;
  private users = 0;
  private stop?: () => void;

  constructor(readonly resource: Resource, private readonly index?: (changes: Change<T>[]) => void, readonly bound?: Bound<T>) {}

  /** Starts the watch for the first user. Returns the function that ends the use. */
  use(): () => void {
    this.users += 1;
    if (this.users === 1) this.start();
    return () => {
      this.users -= 1;
      if (this.users === 0) this.pause();
    };
  }

  publish(): void {
    this.objects.value = { items: this.state.items };
  }

  /** Applies changes that the watch, or a benchmark, has made in `items`. */
  changed(changes: Change<T>[]): void {
    if (changes.length === 0) return;
    this.index?.(changes);
    unpublished.add(this as unknown as Collection<never>);
    publishSoon();
  }

  /** Objects and version, for the watch. */
  get target(): Objects<T> {
    return this.state;
  }

  get used(): boolean {
    return this.users > 0;
  }

  start(): void {
    this.stop?.();
    if (this.sync.peek() === 'stopped') this.sync.value = this.state.resourceVersion === '' ? 'loading' : 'stale';
    this.stop = watch<T>({
      path: listPath(this.resource),
      state: this.state,
      bound: this.bound,
      changed: (changes) => this.changed(changes),
      synced: (state, problem) => {
        if (state === 'live' || state === 'polled') {
          this.seenAt = serverNow();
          this.known.value = true;
        }
        this.problem.value = problem;
        this.sync.value = state;
      },
    });
  }

  pause(): void {
    this.stop?.();
    this.stop = undefined;
    this.sync.value = 'stopped';
  }

  /** Forgets all objects, after a sign-out. */
  clear(): void {
    this.pause();
    const gone = [...this.state.items].map(([key, before]) => ({ key, before }));
    this.state.items.clear();
    this.state.resourceVersion = '';
    this.known.value = false;
    this.changed(gone);
  }
}

const byNode = new Map<string, Map<string, ModelReplica>>();
const byDeployment = new Map<string, Map<string, ModelReplica>>();
const usages = new Map<string, Usage>();
const NO_REPLICAS: ReadonlyMap<string, ModelReplica> = new Map();

function file(index: Map<string, Map<string, ModelReplica>>, group: string | undefined, key: string, replica: ModelReplica | undefined): void {
  if (group === undefined) return;
  const members = index.get(group);
  if (replica !== undefined) {
    if (members) members.set(key, replica);
    else index.set(group, new Map([[key, replica]]));
  } else if (members?.delete(key) && members.size === 0) {
    index.delete(group);
  }
}

/** Returns the key of the deployment that owns a replica. */
export function deploymentKey(replica: ModelReplica): string | undefined {
  const name = replica.metadata.labels?.['rooflet.dev/deployment'];
  return name === undefined ? undefined : `${replica.metadata.namespace}/${name}`;
}

export const nodes = new Collection<FleetNode>(NODES, (changes) => {
  for (const { key } of changes) usages.delete(key);
});
export const deployments = new Collection<ModelDeployment>(DEPLOYMENTS);
export const replicas = new Collection<ModelReplica>(REPLICAS, (changes) => {
  for (const { key, before, after } of changes) {
    if (before) {
      file(byNode, before.spec.nodeName, key, undefined);
      file(byDeployment, deploymentKey(before), key, undefined);
      if (before.spec.nodeName) usages.delete(before.spec.nodeName);
    }
    if (after) {
      file(byNode, after.spec.nodeName, key, after);
      file(byDeployment, deploymentKey(after), key, after);
      if (after.spec.nodeName) usages.delete(after.spec.nodeName);
    }
  }
});
export const revisions = new Collection<ModelRevision>(REVISIONS);
export const claims = new Collection<PerformanceClaim>(CLAIMS);
export const plans = new Collection<CapacityPlan>(PLANS);
export const keys = new Collection<ApiKey>(KEYS);
export const events = new Collection<KubeEvent>(EVENTS, undefined, { max: 5000, time: eventTime });

/** Kinds that every view needs. */
export const CORE = [nodes, deployments, replicas] as const;
const ALL: readonly Collection<never>[] = [nodes, deployments, replicas, revisions, claims, plans, keys, events] as never;

/** Returns the replicas of a node. Read `replicas.objects` first to depend on them. */
export function replicasOn(node: string): ReadonlyMap<string, ModelReplica> {
  return byNode.get(node) ?? NO_REPLICAS;
}

/** Returns the replicas of a deployment. Read `replicas.objects` first to depend on them. */
export function replicasOf(deployment: string): ReadonlyMap<string, ModelReplica> {
  return byDeployment.get(deployment) ?? NO_REPLICAS;
}

/** Returns the use of a node, computed once per change of its replicas. */
export function usage(node: FleetNode): Usage {
  const name = node.metadata.name;
  let found = usages.get(name);
  if (!found) {
    found = usageOf(node, replicasOn(name).values());
    usages.set(name, found);
  }
  return found;
}

/** Forgets everything, after a sign-out. */
export function clearAll(): void {
  for (const collection of ALL) collection.clear();
}

/** Closes the watches of a hidden page, and opens them again when it is shown. */
export function watchVisibility(): void {
  let timer: ReturnType<typeof setTimeout> | undefined;
  document.addEventListener('visibilitychange', () => {
    clearTimeout(timer);
    if (document.hidden) {
      timer = setTimeout(() => ALL.forEach((collection) => collection.used && collection.pause()), HIDDEN_SECONDS * 1000);
    } else {
      for (const collection of ALL) if (collection.used && collection.sync.peek() === 'stopped') collection.start();
    }
  });
}
