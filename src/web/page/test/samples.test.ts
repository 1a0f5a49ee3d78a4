import assert from 'node:assert/strict';
import { test } from 'node:test';
import { withHistory, type Series } from '../src/samples';

test('history is put before the samples, and missing series are unknown', () => {
  const samples: Series = { times: [250, 255], predicted: [5, 6], measured: [7, 8], firstTokenPredicted: [null, null], firstTokenMeasured: [null, null], throughput: [1, 1], floor: [null, null] };
  const joined = withHistory(samples, { start: 60, stepSeconds: 60, series: { measuredTokensPerSecond: [1, null, 3, 4, 5], floorTokensPerSecond: [9] } });
  assert.deepEqual(joined.times, [60, 120, 180, 240, 250, 255]);
  assert.deepEqual(joined.measured, [1, null, 3, 4, 7, 8]);
  assert.deepEqual(joined.predicted, [null, null, null, null, 5, 6]);
  assert.deepEqual(joined.floor, [9, null, null, null, null, null]);
});
