import assert from 'node:assert/strict';
import { test } from 'node:test';
import { parseDuration, parsePair, parseQuantity } from '../src/format/quantity';
import { age, bandwidth, bytes, count, number, percent, seconds, short, words } from '../src/format/text';
import { sorted, toggled } from '../src/format/order';
import { differenceMs } from '../src/format/clock';
import { diffLines, hunks } from '../src/format/diff';
import { documents, toYaml } from '../src/format/yaml';

test('quantities have binary and decimal suffixes and exponents', () => {
  assert.equal(parseQuantity('16Gi'), 16 * 2 ** 30);
  assert.equal(parseQuantity('9799Mi'), 9799 * 2 ** 20);
  assert.equal(parseQuantity('4Ki'), 4096);
  assert.equal(parseQuantity('100m'), 0.1);
  assert.equal(parseQuantity('1e3'), 1000);
  assert.equal(parseQuantity('36721970300'), 36721970300);
  for (const text of ['', '16 GB', 'Gi', '1KiB', undefined]) assert.equal(parseQuantity(text), undefined);
});

test('durations are those of Go', () => {
  assert.equal(parseDuration('798ms'), 0.798);
  assert.equal(parseDuration('1m30.5s'), 90.5);
  for (const text of ['', '5', '3 s', '1d', undefined]) assert.equal(parseDuration(text), undefined);
});

test('missing half of a pair is unknown', () => {
  assert.deepEqual(parsePair('36.5/-'), { predicted: 36.5, measured: undefined });
  assert.deepEqual(parsePair('1.15s/127ms'), { predicted: 1.15, measured: 0.127 });
  assert.deepEqual(parsePair(undefined), { predicted: undefined, measured: undefined });
});

test('unknown figures are a dash, never zero', () => {
  for (const format of [number, count, bytes, bandwidth, percent, seconds, age]) assert.equal(format(undefined), '–');
  assert.equal(number(NaN), '–');
});

test('figures have three significant digits', () => {
  assert.deepEqual([0.0983, 9.24, 36.54, 52, 99.97, 533.6, 12345].map(number), ['0.098', '9.24', '36.5', '52.0', '100', '534', '12,345']);
  assert.deepEqual([0.5, 2, 52, 2000].map(short), ['0.5', '2', '52', '2,000']);
  assert.equal(bytes(9799 * 2 ** 20), '9.6 GiB');
  assert.equal(bandwidth(273e9), '273 GB/s');
  assert.equal(seconds(0.127), '127 ms');
  assert.equal(seconds(2.213), '2.21 s');
});

test('ages are those of kubectl', () => {
  assert.deepEqual([5, 119, 200, 600, 11000, 86400 * 2, 86400 * 12].map(age), ['5s', '119s', '3m20s', '10m', '3h3m', '2d', '12d']);
  assert.equal(age(-5), '0s');
});

test('reasons become words and keep abbreviations', () => {
  assert.equal(words('ObjectiveOutOfReach'), 'Objective out of reach');
  assert.equal(words('OnBattery'), 'On battery');
});

test('names sort by their numbers, unknown keys last in both directions', () => {
  const rows = [{ name: 'mini-10', key: 1 }, { name: 'mini-2', key: undefined }, { name: 'mini-1', key: 2 }];
  const by = (descending: boolean) => sorted(rows, (row) => row.key, (row) => row.name, descending).map((row) => row.name);
  assert.deepEqual(by(false), ['mini-10', 'mini-1', 'mini-2']);
  assert.deepEqual(by(true), ['mini-1', 'mini-10', 'mini-2']);
  assert.deepEqual(sorted(rows, (row) => row.name, (row) => row.name, false).map((row) => row.name), ['mini-1', 'mini-2', 'mini-10']);
  assert.deepEqual(toggled({ column: 'a', descending: false }, 'a', true), { column: 'a', descending: true });
  assert.deepEqual(toggled({ column: 'a', descending: false }, 'b', true), { column: 'b', descending: true });
});

test('difference keeps common lines and hides distant ones', () => {
  const lines = diffLines('a\nb\nc', 'a\nx\nc');
  assert.deepEqual(lines.map((line) => line.kind[0] + line.text), ['sa', 'rb', 'ax', 'sc']);
  const long = Array.from({ length: 20 }, (_, index) => String(index));
  const changed = [...long];
  changed[10] = 'x';
  const shown = hunks(diffLines(long.join('\n'), changed.join('\n')), 1);
  assert.deepEqual(shown.map((line) => line?.text ?? null), ['9', '10', 'x', '11']);
  assert.deepEqual(hunks(diffLines('same', 'same')), []);
});

test('YAML of an object quotes what would be another type', () => {
  const text = toYaml({ a: 'true', b: 80, c: '80%', d: ['x', { e: 1, f: [] }], g: {}, h: 'a: b', i: '12' });
  assert.equal(text, 'a: "true"\nb: 80\nc: 80%\nd:\n- x\n- e: 1\n  f: []\ng: {}\nh: "a: b"\ni: "12"');
});

test('identity is read from block and flow style', () => {
  const [block, flow, broken] = documents(`# comment
apiVersion: rooflet.dev/v1alpha1
kind: ModelDeployment
metadata:
  labels:
    name: not-this
  name: chat   # the name
  namespace: "team-a"
spec: {name: other}
---
apiVersion: v1
kind: Namespace
metadata: {name: team-b, labels: {a: b}}
---
kind: Secret
`);
  assert.deepEqual(block?.identity, { apiVersion: 'rooflet.dev/v1alpha1', kind: 'ModelDeployment', name: 'chat', namespace: 'team-a' });
  assert.deepEqual(flow?.identity, { apiVersion: 'v1', kind: 'Namespace', name: 'team-b', namespace: undefined });
  assert.equal(broken?.problem, 'document 3: apiVersion, metadata.name is missing');
  assert.deepEqual(documents('# nothing\n---\n'), []);
});

test('clocks differ if a fast response has another date', () => {
  const sent = Date.parse('2026-01-01T12:00:00.700Z');
  const difference = (date: string | null, duration = 40) => differenceMs(date, sent, sent + duration);
  assert.equal(difference('Thu, 01 Jan 2026 13:00:00 GMT'), 3_599_780);
  assert.equal(difference('Thu, 01 Jan 2026 11:00:00 GMT'), -3_600_220);
  assert.equal(difference('Thu, 01 Jan 2026 12:00:00 GMT'), 0);
  assert.equal(difference('Thu, 01 Jan 2026 12:00:04 GMT'), 0, 'a small difference is ignored');
  assert.equal(difference('Thu, 01 Jan 2026 11:00:00 GMT', 30_000), undefined, 'a proxy may have kept the response');
  for (const date of [null, '', 'yesterday']) assert.equal(difference(date), undefined);
});
