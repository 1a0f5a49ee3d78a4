// Keeps objects current: each kind is listed, and one connection carries the watches of all kinds,
// because a browser opens few connections per server.

import type { KubeObject } from './kinds';
import { json, lines, request } from './http';
import { Problem, problemOf } from './problem';
import { applyEvent, applyList, backoffSeconds, newest, prune, WatchError, type Bound, type Change, type Objects, type WatchEvent } from './reducer';
import { API } from './resources';

const PAGE_SIZE = 500;
/** The server sends a line at least every 15 seconds. Without one for longer, the connection is dead. */
const SILENCE_SECONDS = 40;
/** The server sends the first line at once. Without it, a proxy holds the response back. */
const FIRST_LINE_SECONDS = 10;
/** Interval of lists while a proxy holds the stream back. */
export const POLL_SECONDS = 10;
/** Number of lists before the page tries the stream again. */
const POLLS = 30;
/** Kinds that start within this time share the first connection. */
const GATHER_MS = 30;

/** `polled`: listed again and again, because a proxy holds the stream of changes back. */
export type SyncState = 'loading' | 'live' | 'polled' | 'stale' | 'forbidden' | 'signed-out' | 'stopped';

export function isCurrent(state: SyncState): boolean {
  return state === 'live' || state === 'polled';
}

/** Kind to keep current. */
export interface WatchTarget<T extends KubeObject = KubeObject> {
  /** Path of the list, such as `/proxy/api/api/v1/events`. */
  path: string;
  state: Objects<T>;
  /** Unset: all objects are kept. */
  bound?: Bound<T>;
  changed(changes: Change<T>[]): void;
  synced(state: SyncState, problem?: Problem): void;
}

interface List<T> {
  metadata: { resourceVersion: string; continue?: string };
  items: T[];
}

interface Message {
  watch: number;
  event?: WatchEvent<KubeObject>;
  status?: number;
  body?: unknown;
  end?: string;
}

interface Entry {
  target: WatchTarget;
  stop: AbortController;
  failures: number;
  listed: boolean;
}

const entries = new Set<Entry>();
let connection: AbortController | undefined;
let gathering: ReturnType<typeof setTimeout> | undefined;
let failures = 0;
/** Lists to make before the stream is tried. 0 unless a proxy holds the stream back. */
let polls = 0;

/** Lists and watches until the returned function is called. */
export function watch<T extends KubeObject>(target: WatchTarget<T>): () => void {
  const entry: Entry = { target: target as unknown as WatchTarget, stop: new AbortController(), failures: 0, listed: target.state.resourceVersion !== '' };
  entries.add(entry);
  if (entry.listed) connectSoon();
  else void list(entry);
  return () => {
    entry.stop.abort();
    entries.delete(entry);
    connectSoon();
  };
}

async function list(entry: Entry): Promise<void> {
  const { target, stop } = entry;
  entry.listed = false;
  while (!stop.signal.aborted) {
    try {
      await listOnce(entry, stop.signal);
      target.synced(polls > 0 ? 'polled' : 'live');
      entry.listed = true;
      return connectSoon();
    } catch (error) {
      if (stop.signal.aborted) return;
      const problem = asProblem(error);
      if (problem.kind === 'signed-out') return target.synced('signed-out', problem);
      entry.failures += 1;
      target.synced(problem.kind === 'forbidden' ? 'forbidden' : 'stale', problem);
      await delay(problem.retryAfterSeconds ?? backoffSeconds(entry.failures, Math.random()), stop.signal);
    }
  }
}

async function listOnce({ target }: Entry, signal: AbortSignal): Promise<void> {
  const { bound } = target;
  let items: KubeObject[] = [];
  let token = '';
  let version = '';
  do {
    const next: string = token === '' ? '' : `&continue=${encodeURIComponent(token)}`;
    const page: List<KubeObject> = await json<List<KubeObject>>(`${target.path}?limit=${PAGE_SIZE}${next}`, { signal });
    items.push(...page.items);
    if (bound && items.length > 2 * bound.max) items = newest(items, bound);
    version = page.metadata.resourceVersion;
    token = page.metadata.continue ?? '';
  } while (token !== '');
  target.changed(applyList(target.state, bound ? newest(items, bound) : items, version));
}

/** Opens the connection again with the kinds that are listed now. */
function connectSoon(): void {
  clearTimeout(gathering);
  gathering = setTimeout(() => void connect(), GATHER_MS);
}

async function connect(): Promise<void> {
  connection?.abort();
  const stop = new AbortController();
  connection = stop;
  while (!stop.signal.aborted) {
    const watched = [...entries].filter((entry) => entry.listed);
    if (watched.length === 0) return;
    try {
      if (polls > 0) await poll(watched, stop);
      else await follow(watched, stop);
      // All watches have ended, or some need a new list. The others continue where they were.
    } catch (error) {
      if (stop.signal.aborted) return;
      const problem = asProblem(error);
      if (problem.kind === 'signed-out') return watched.forEach((entry) => entry.target.synced('signed-out', problem));
      if (problem instanceof HeldBack) {
        polls = POLLS;
        continue;
      }
      failures += 1;
      watched.forEach((entry) => entry.target.synced('stale', problem));
    }
    await delay(failures === 0 ? 0.1 : backoffSeconds(failures, Math.random()), stop.signal);
  }
}

/** No line has arrived, although the server sends the first line at once. */
class HeldBack extends Problem {
  constructor() {
    super('disconnected', 'a proxy holds the stream of changes back');
  }
}

/** Lists the kinds, and waits. */
async function poll(watched: Entry[], stop: AbortController): Promise<void> {
  const silent = new AbortController();
  const abort = () => silent.abort();
  stop.signal.addEventListener('abort', abort, { once: true });
  const timer = setTimeout(abort, SILENCE_SECONDS * 1000);
  try {
    for (const entry of watched) {
      if (!entry.listed || entry.stop.signal.aborted) continue;
      await listOnce(entry, silent.signal).then(() => entry.target.synced('polled'), (error: unknown) => {
        const problem = asProblem(error);
        if (problem.kind !== 'forbidden' && problem.kind !== 'gone') throw problem;
        relist(entry, problem);
      });
    }
  } catch (error) {
    // The server is away, so the reason may not be a proxy.
    polls = 0;
    throw error;
  } finally {
    clearTimeout(timer);
    stop.signal.removeEventListener('abort', abort);
  }
  failures = 0;
  polls -= 1;
  await delay(POLL_SECONDS, stop.signal);
}

async function follow(watched: Entry[], stop: AbortController): Promise<void> {
  const query = watched.map(({ target }) => {
    const version = encodeURIComponent(target.state.resourceVersion);
    const path = `${target.path.slice(API.length)}?allowWatchBookmarks=true&resourceVersion=${version}`;
    return `path=${encodeURIComponent(path)}`;
  });
  const silent = new AbortController();
  const abort = () => silent.abort();
  stop.signal.addEventListener('abort', abort, { once: true });
  let timer = setTimeout(abort, FIRST_LINE_SECONDS * 1000);
  let live = false;
  const open = new Set(watched);
  /** Watches that the API server has accepted. */
  const accepted = new Set<Entry>();
  try {
    const response = await request(`/proxy/watch?${query.join('&')}`, { signal: silent.signal });
    for await (const line of lines(response)) {
      clearTimeout(timer);
      timer = setTimeout(abort, SILENCE_SECONDS * 1000);
      live = true;
      if (line !== '') handle(watched, open, accepted, JSON.parse(line) as Message);
      else accepted.forEach((entry) => open.has(entry) && entry.target.synced('live'));
      if (open.size < watched.length) return;
    }
    if (silent.signal.aborted) throw new Problem('disconnected', 'the server is silent');
  } catch (error) {
    if (silent.signal.aborted && !stop.signal.aborted) throw live ? new Problem('disconnected', 'the server is silent') : new HeldBack();
    throw error;
  } finally {
    clearTimeout(timer);
    stop.signal.removeEventListener('abort', abort);
    silent.abort();
  }
}

function handle(watched: Entry[], open: Set<Entry>, accepted: Set<Entry>, message: Message): void {
  const entry = watched[message.watch];
  if (!entry || entry.stop.signal.aborted) return;
  const { target } = entry;
  if (message.event) {
    try {
      const change = applyEvent(target.state, message.event);
      entry.failures = 0;
      if (change) target.changed([change, ...(target.bound ? prune(target.state, target.bound) : [])]);
      target.synced('live');
    } catch (error) {
      open.delete(entry);
      relist(entry, asProblem(error));
    }
  } else if (message.status === 200) {
    accepted.add(entry);
    failures = 0;
    target.synced('live');
  } else if (message.status !== undefined && message.status >= 500) {
    // The API server does not answer. All watches are started again from their versions.
    throw problemOf(message.status, JSON.stringify(message.body ?? ''));
  } else if (message.status !== undefined) {
    open.delete(entry);
    relist(entry, problemOf(message.status, JSON.stringify(message.body ?? '')));
  } else if (message.end !== undefined) {
    open.delete(entry);
  }
}

/** Lists the kind again: the server no longer knows the version, or rejects the watch. */
function relist(entry: Entry, problem: Problem): void {
  entry.listed = false;
  if (problem.kind === 'signed-out') return entry.target.synced('signed-out', problem);
  if (problem.kind === 'gone') return void list(entry);
  entry.failures += 1;
  entry.target.synced(problem.kind === 'forbidden' ? 'forbidden' : 'stale', problem);
  void delay(backoffSeconds(entry.failures, Math.random()), entry.stop.signal).then(() => list(entry));
}

function asProblem(error: unknown): Problem {
  if (error instanceof Problem) return error;
  if (error instanceof WatchError) return new Problem(error.code === 410 ? 'gone' : 'disconnected', error.message, error.code);
  return new Problem('disconnected', error instanceof Error ? error.message : String(error));
}

function delay(seconds: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const done = () => {
      clearTimeout(timer);
      window.removeEventListener('online', done);
      signal.removeEventListener('abort', done);
      resolve();
    };
    const timer = setTimeout(done, seconds * 1000);
    window.addEventListener('online', done);
    signal.addEventListener('abort', done);
  });
}
