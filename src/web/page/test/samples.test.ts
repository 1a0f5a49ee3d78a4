import assert from 'node:assert/strict';
import { test } from 'node:test';
import { timesOf, withHistory, type Series } from '../src/samples';

test('history is put before the samples, and missing series are unknown', () => {
  const samples: Series = { times: [250, 255], predicted: [5, 6], measured: [7, 8], firstTokenPredicted: [null, null], firstTokenMeasured: [null, null], throughput: [1, 1], floor: [null, null] };
  const joined = withHistory(samples, { start: 60, stepSeconds: 60, series: { measuredTokensPerSecond: [1, null, 3, 4, 5], floorTokensPerSecond: [9] } });
  assert.deepEqual(joined.times, [60, 120, 180, 240, 250, 255]);
  assert.deepEqual(joined.measured, [1, null, 3, 4, 7, 8]);
  assert.deepEqual(joined.predicted, [null, null, null, null, 5, 6]);
  assert.deepEqual(joined.floor, [9, null, null, null, null, null]);
});

test('a history has regular or listed times', () => {
  assert.deepEqual(timesOf({ start: 60, stepSeconds: 30, series: { a: [1], b: [1, 2, 3] } }), [60, 90, 120]);
  assert.deepEqual(timesOf({ times: [5, 700], series: { a: [1, 2] } }), [5, 700]);
  assert.deepEqual(timesOf({ start: 60, stepSeconds: 30, series: {} }), []);
});
