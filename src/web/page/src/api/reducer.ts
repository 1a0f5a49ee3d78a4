// Objects of a kind as a list and watch events define them. Pure, except that `items` is updated in place.

import { keyOf, type KubeObject } from './kinds';

export interface WatchEvent<T extends KubeObject> {
  type: 'ADDED' | 'MODIFIED' | 'DELETED' | 'BOOKMARK' | 'ERROR';
  object: T;
}

export interface Objects<T extends KubeObject> {
  items: Map<string, T>;
  resourceVersion: string;
}

/** Object that a list or event replaced. `before` or `after` is unset for new and deleted objects. */
export interface Change<T extends KubeObject> {
  key: string;
  before?: T;
  after?: T;
}

/** Error event of a watch. A code of 410 requires a new list. */
export class WatchError extends Error {
  constructor(readonly code: number, message: string) {
    super(message);
  }
}

/** Replaces the objects by those of a list. Returns the changes. */
export function applyList<T extends KubeObject>(state: Objects<T>, listed: T[], resourceVersion: string): Change<T>[] {
  const changes: Change<T>[] = [];
  const keys = new Set<string>();
  for (const after of listed) {
    const key = keyOf(after.metadata);
    keys.add(key);
    const before = state.items.get(key);
    const same = before !== undefined
      && before.metadata.uid === after.metadata.uid
      && before.metadata.resourceVersion === after.metadata.resourceVersion;
    if (!same) {
      state.items.set(key, after);
      changes.push({ key, before, after });
    }
  }
  for (const [key, before] of state.items) {
    if (!keys.has(key)) {
      state.items.delete(key);
      changes.push({ key, before });
    }
  }
  state.resourceVersion = resourceVersion;
  return changes;
}

/** Applies an event of a watch. Returns its change, or undefined for a bookmark. */
export function applyEvent<T extends KubeObject>(state: Objects<T>, event: WatchEvent<T>): Change<T> | undefined {
  if (event.type === 'ERROR') {
    const status = event.object as unknown as { code?: number; message?: string };
    throw new WatchError(status.code ?? 0, status.message ?? 'the watch failed');
  }
  const version = event.object.metadata.resourceVersion;
  if (version !== undefined) state.resourceVersion = version;
  if (event.type === 'BOOKMARK') return undefined;
  const key = keyOf(event.object.metadata);
  const before = state.items.get(key);
  if (event.type === 'DELETED') {
    state.items.delete(key);
    return { key, before };
  }
  state.items.set(key, event.object);
  return { key, before, after: event.object };
}

/** Maximum number of objects of a kind that the page keeps. */
export interface Bound<T extends KubeObject> {
  max: number;
  /** Time by which the newest objects are found, in RFC 3339. */
  time: (object: T) => string | undefined;
}

/** Returns the newest objects. */
export function newest<T extends KubeObject>(objects: T[], { max, time }: Bound<T>): T[] {
  if (objects.length <= max) return objects;
  const times = new Map(objects.map((object) => [object, Date.parse(time(object) ?? '') || 0]));
  return [...objects].sort((a, b) => times.get(b)! - times.get(a)!).slice(0, max);
}

/** Removes the oldest objects if they exceed the bound by a tenth. Returns the changes. */
export function prune<T extends KubeObject>(state: Objects<T>, bound: Bound<T>): Change<T>[] {
  if (state.items.size <= bound.max * 1.1) return [];
  const kept = new Set(newest([...state.items.values()], bound));
  const changes: Change<T>[] = [];
  for (const [key, before] of state.items) {
    if (kept.has(before)) continue;
    state.items.delete(key);
    changes.push({ key, before });
  }
  return changes;
}

/** Returns the seconds before the next attempt: 1, 2, 4 … up to 30, reduced by up to a half. */
export function backoffSeconds(failures: number, random: number): number {
  return Math.min(30, 2 ** Math.max(0, failures - 1)) * (1 - random / 2);
}
