import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { KubeObject } from '../src/api/kinds';
import { problemOf } from '../src/api/problem';
import { applyEvent, applyList, backoffSeconds, newest, prune, WatchError, type Objects, type WatchEvent } from '../src/api/reducer';

const object = (name: string, resourceVersion: string, uid = name): KubeObject => ({ metadata: { name, namespace: 'default', resourceVersion, uid } });
const event = (type: WatchEvent<KubeObject>['type'], of: KubeObject): WatchEvent<KubeObject> => ({ type, object: of });
const empty = (): Objects<KubeObject> => ({ items: new Map(), resourceVersion: '' });

test('list replaces the objects and reports only differences', () => {
  const state = empty();
  assert.equal(applyList(state, [object('a', '1'), object('b', '2')], '5').length, 2);
  const changes = applyList(state, [object('b', '2'), object('c', '7')], '8');
  assert.deepEqual(changes.map((change) => [change.key, !!change.before, !!change.after]), [['default/c', false, true], ['default/a', true, false]]);
  assert.equal(state.resourceVersion, '8');
});

test('object with the same name and another uid is a change', () => {
  const state = empty();
  applyList(state, [object('a', '1', 'first')], '1');
  assert.equal(applyList(state, [object('a', '1', 'second')], '1').length, 1);
});

test('events update objects and version; a bookmark updates only the version', () => {
  const state = empty();
  applyList(state, [object('a', '1')], '1');
  assert.ok(applyEvent(state, event('MODIFIED', object('a', '3'))));
  assert.ok(applyEvent(state, event('ADDED', object('b', '4'))));
  assert.equal(applyEvent(state, event('BOOKMARK', object('', '9'))), undefined);
  assert.equal(state.resourceVersion, '9');
  const gone = applyEvent(state, event('DELETED', object('a', '10')));
  assert.equal(gone?.before?.metadata.resourceVersion, '3');
  assert.deepEqual([...state.items.keys()], ['default/b']);
});

test('expired watch raises 410 and changes nothing', () => {
  const state = empty();
  applyList(state, [object('a', '1')], '1');
  const expired = { type: 'ERROR', object: { kind: 'Status', code: 410, message: 'too old' } } as unknown as WatchEvent<KubeObject>;
  assert.throws(() => applyEvent(state, expired), (error: unknown) => error instanceof WatchError && error.code === 410);
  assert.equal(state.items.size, 1);
  assert.equal(state.resourceVersion, '1');
});

test('backoff grows to 30 seconds and is spread', () => {
  assert.deepEqual([1, 2, 3, 10].map((failures) => backoffSeconds(failures, 0)), [1, 2, 4, 30]);
  assert.equal(backoffSeconds(10, 1), 15);
});

test('problems of API server, gateway and page have one form', () => {
  const status = problemOf(403, '{"kind":"Status","reason":"Forbidden","message":"fleetnodes is forbidden"}');
  assert.deepEqual([status.kind, status.message], ['forbidden', 'fleetnodes is forbidden']);
  const own = problemOf(401, '{"error":{"reason":"NotSignedIn","message":"sign in"}}');
  assert.deepEqual([own.kind, own.message], ['signed-out', 'sign in']);
  const gateway = problemOf(429, '{"error":{"message":"too many requests","type":"rate_limit"}}', '7');
  assert.deepEqual([gateway.kind, gateway.retryAfterSeconds], ['busy', 7]);
  assert.equal(problemOf(502, '<html>').kind, 'disconnected');
  assert.equal(problemOf(410, '').kind, 'gone');
});

test('bounded kind keeps the newest objects', () => {
  const at = (name: string, minute: number): KubeObject => ({ metadata: { name, creationTimestamp: `2026-01-01T00:${String(minute).padStart(2, '0')}:00Z` } });
  const bound = { max: 10, time: (of: KubeObject) => of.metadata.creationTimestamp };
  const all = Array.from({ length: 12 }, (_, minute) => at(`e${minute}`, minute));
  assert.deepEqual(newest(all, bound).map((of) => of.metadata.name).sort(), all.slice(2).map((of) => of.metadata.name).sort());
  const state = empty();
  for (const of of all.slice(0, 11)) applyEvent(state, event('ADDED', of));
  assert.deepEqual(prune(state, bound), [], 'a tenth more is kept');
  applyEvent(state, event('ADDED', all[11]!));
  assert.deepEqual(prune(state, bound).map((change) => [change.key, !!change.after]), [['e0', false], ['e1', false]]);
  assert.equal(state.items.size, 10);
});
