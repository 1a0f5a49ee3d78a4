import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { FleetNode, ModelDeployment, ModelReplica, ModelRevision } from '../src/api/kinds';
import { decodeSpeed, parseChunk } from '../src/fleet/chat';
import { explain } from '../src/fleet/explanation';
import { deploymentHealth, nodeHealth, replicaHealth } from '../src/fleet/health';
import { added, buckets, parseMetrics, lastMinute, quantile, total, totals } from '../src/fleet/metrics';
import { bytesPerStep, pictureOf, ticks } from '../src/fleet/roofline';
import { canarySteps, isRejected, patchOf, throughputFloor, unavailable, undoPatch } from '../src/fleet/rollout';
import { bandwidthOf, speedRows, usageOf } from '../src/fleet/usage';

const node = (status: FleetNode['status'], spec: FleetNode['spec'] = {}): FleetNode => ({ metadata: { name: 'mini-1' }, spec, status });
const condition = (type: string, status: 'True' | 'False' | 'Unknown', message = 'why') => ({ type, status, reason: 'SomeReason', message });
const replica = (status: Partial<NonNullable<ModelReplica['status']>>): ModelReplica => ({
  metadata: { name: 'chat-1', namespace: 'default' }, spec: { model: { source: 'local://m' }, nodeName: 'mini-1' }, status: { phase: 'Ready', conditions: [condition('Ready', 'True')], ...status },
});
const admission = (chipTimePercent: number, admitted = true) => ({
  admitted, chipTimePercent, freeChipTimePercent: 100,
  memory: { weightsBytes: 0, kvBytes: 0, activationBytes: 0, runtimeBytes: 0, limitBytes: 0, freeBytes: 0 },
});

test('use of a Mac adds reservations and skips finished and rejected replicas', () => {
  const requests = { running: 2, waiting: 1, completed: 0, failed: 0 };
  const used = usageOf(node({ allocatable: { memory: '10Gi' } }), [
    replica({ reservedMemory: '4Gi', admission: admission(40), requests }),
    replica({ reservedMemory: '2Gi', admission: admission(5), phase: 'Loading', conditions: [] }),
    replica({ reservedMemory: '9Gi', admission: admission(90), phase: 'Failed' }),
    replica({ admission: admission(70, false), phase: 'Pending', conditions: [] }),
  ]);
  assert.equal(used.memoryReserved, 6 * 2 ** 30);
  assert.equal(used.bandwidthReserved, 45);
  assert.equal(used.bandwidthActive, 40);
  assert.deepEqual([used.replicas, used.ready, used.running, used.waiting], [4, 1, 2, 1]);
});

test('replica on a silent Mac keeps its reservations, and is not ready and has no requests', () => {
  const silent = { type: 'Ready', status: 'False', reason: 'NodeNotReady', message: 'why' } as const;
  const requests = { running: 2, waiting: 1, completed: 0, failed: 0 };
  const used = usageOf(node(undefined), [replica({ reservedMemory: '4Gi', admission: admission(40), requests, conditions: [silent] })]);
  assert.deepEqual([used.memoryReserved, used.bandwidthReserved, used.bandwidthActive], [4 * 2 ** 30, 40, 0]);
  assert.deepEqual([used.replicas, used.ready, used.running, used.waiting], [1, 0, 0, 0]);
  // A replica that drains finishes its requests.
  const draining = usageOf(node(undefined), [replica({ phase: 'Draining', requests, conditions: [condition('Ready', 'False')] })]);
  assert.deepEqual([draining.ready, draining.running], [0, 2]);
});

test('measured figures of a Mac are those of its speed', () => {
  const speed = { basis: 'Measured', engine: 'mlx', measuredAt: '', verdict: 'TooLow', readBytesPerSecond: 250e9, decodeBytesPerSecond: 240e9, thermalState: 'Nominal', powerSource: 'AC' } as const;
  assert.deepEqual(speedRows(speed).map(([name]) => name), ['Read', '4-bit matrix-vector', 'Plausibility']);
  const disk = speedRows({ ...speed, verdict: 'Plausible', diskReadBytesPerSecond: { p10: 4e9, p50: 5e9, p90: 6e9 } });
  assert.deepEqual(disk[0], ['Read', '250 GB/s']);
  assert.deepEqual(disk[2]?.[0], 'Disk read');
  assert.equal(disk.length, 3);
});

test('nominal bandwidth is never measured bandwidth', () => {
  const nominal = node({ dataSheet: { memoryBytesPerSecond: 273e9, source: 's' } });
  assert.deepEqual(bandwidthOf(nominal), { measured: undefined, nominal: 273e9 });
  assert.deepEqual(pictureOf(nominal, [])?.roofs.map((roof) => roof.basis), ['Nominal']);
});

test('state of a Mac is its most severe condition', () => {
  assert.equal(nodeHealth(node(undefined)).label, 'Joining');
  assert.equal(nodeHealth(node({ conditions: [condition('Ready', 'Unknown')] })).label, 'Silent');
  assert.equal(nodeHealth(node({ conditions: [condition('Ready', 'True'), condition('MemoryPressure', 'True')] })).label, 'Memory pressure');
  assert.equal(nodeHealth(node({ conditions: [condition('Ready', 'True'), condition('ProbeFresh', 'False')] })).level, 'good');
  assert.equal(nodeHealth(node({ conditions: [condition('Ready', 'True')] }, { unschedulable: true })).label, 'Cordoned');
});

test('pending replica shows the reason of its first false condition', () => {
  const pending = replica({ phase: 'Pending', conditions: [{ type: 'Scheduled', status: 'False', reason: 'InsufficientMemory', message: 'no room' }] });
  assert.deepEqual(replicaHealth(pending), { level: 'bad', label: 'Insufficient memory', detail: 'no room' });
  assert.equal(replicaHealth(replica({ phase: 'Pulling', download: { bytes: 1, totalBytes: 3 } })).label, 'Pulling 33 %');
});

const canary = (status: ModelDeployment['status'], spec: Partial<ModelDeployment['spec']> = {}): ModelDeployment => ({
  metadata: { name: 'chat', namespace: 'default', generation: 3, resourceVersion: '7' },
  spec: {
    replicas: 4, model: { source: 'local://m' }, serving: { contextTokens: 64 },
    strategy: { type: 'Canary', rollingUpdate: { minThroughput: '60%' }, canary: { steps: [{ setWeight: 20 }, { pause: {} }, { analysis: {} }] } },
    ...spec,
  },
  status: { observedGeneration: 3, ...status },
});
const inProgress = canary({ rollout: { stableRevision: 'chat-1', revision: 'chat-2', startedAt: '2026-01-01T00:00:00Z', step: 1, referenceTokensPerSecond: 100 } });

test('steps before the current one are done', () => {
  assert.deepEqual(canarySteps(inProgress).map((step) => step.state), ['done', 'current', 'next']);
  const complete = canary({ rollout: { stableRevision: 'chat-2', revision: 'chat-2' } });
  assert.deepEqual(canarySteps(complete).map((step) => step.state), ['done', 'done', 'done']);
});

test('throughput floor is a share of the reference for all replicas', () => {
  assert.deepEqual(throughputFloor(inProgress), { tokensPerSecond: 240, setting: '60 %' });
  assert.equal(throughputFloor(canary({}))?.tokensPerSecond, undefined);
  assert.equal(throughputFloor(canary({}, { strategy: { rollingUpdate: { minThroughput: 120 } } }))?.tokensPerSecond, 120);
  assert.equal(throughputFloor(canary({}, { strategy: {} })), undefined);
});

test('patches are those of rooflet rollout and carry the version', () => {
  const at = new Date('2026-01-02T03:04:05.678Z');
  assert.deepEqual(patchOf(inProgress, 'promote', at), { metadata: { resourceVersion: '7', annotations: { 'rooflet.dev/promote': 'chat-2/2026-01-01T00:00:00Z/1' } } });
  assert.deepEqual(patchOf(inProgress, 'promote-full', at).metadata.annotations, { 'rooflet.dev/promote': 'chat-2/2026-01-01T00:00:00Z/full' });
  assert.deepEqual(patchOf(inProgress, 'abort', at).metadata.annotations, { 'rooflet.dev/abort': 'chat-2/2026-01-01T00:00:00Z' });
  assert.deepEqual(patchOf(inProgress, 'restart', at).spec, { restartedAt: '2026-01-02T03:04:05Z' });
  assert.deepEqual(patchOf(inProgress, 'pause', at).spec, { paused: true });
});

test('actions report why they are not possible', () => {
  assert.equal(unavailable(inProgress, 'promote'), undefined);
  assert.match(unavailable(canary({}), 'abort') ?? '', /no rollout/);
  const unseen = canary({ observedGeneration: 2, rollout: { stableRevision: 'chat-1', revision: 'chat-2', step: 0 } });
  assert.match(unavailable(unseen, 'promote') ?? '', /not observed/);
  assert.match(unavailable(canary({}, { paused: true }), 'undo') ?? '', /paused/);
  const stopped = { ...inProgress, status: { ...inProgress.status, conditions: [{ ...condition('Progressing', 'False' as const), reason: 'ThroughputFloor' }] } };
  assert.match(unavailable(stopped, 'promote') ?? '', /no step waits/);
  assert.equal(unavailable(stopped, 'promote-full'), undefined);
});

test('undo removes fields that the old template lacks and restores the change cause', () => {
  const now = canary({}, { serving: { name: 'other', contextTokens: 64 }, restartedAt: 'now' });
  const revision: ModelRevision = {
    metadata: { name: 'chat-1', annotations: { 'kubernetes.io/change-cause': 'longer' } },
    spec: { revision: 1, model: { source: 'local://m' }, serving: { contextTokens: 128 } },
  };
  assert.deepEqual(undoPatch(now, revision), {
    metadata: { resourceVersion: '7', annotations: { 'kubernetes.io/change-cause': 'longer' } },
    spec: { serving: { name: null, contextTokens: 128 }, restartedAt: null },
  });
  assert.equal(undoPatch(canary({}, { serving: { contextTokens: 128 } }), revision), undefined);
});

test('rollback to the newest revision is offered only while the controller rejects the template', () => {
  const rollout = { stableRevision: 'chat-2', revision: 'chat-2' };
  const conditions = [condition('Admitted', 'False')];
  assert.equal(isRejected(canary({ rollout })), false);
  assert.equal(isRejected(canary({ conditions, rollout: { ...rollout, refused: { revision: 'chat-3', since: '2026-01-01T00:00:00Z' } } })), true);
  // No Mac admits the replicas of the newest revision, which has the commit of the branch `main`.
  assert.equal(isRejected(canary({ conditions, rollout }, { model: { source: 'hf://o/m', revision: 'main' } })), false);
});

test('deployment shows an abort before its conditions', () => {
  const aborted = canary({ rollout: { aborted: { reason: 'AnalysisFailed', message: 'slower', at: '' } }, conditions: [condition('Degraded', 'True')] });
  assert.deepEqual(deploymentHealth(aborted), { level: 'bad', label: 'Rolled back', detail: 'slower' });
});

test('message of the scheduler is split outside parentheses', () => {
  const { summary, reasons, remedies } = explain('0/3 nodes are available: 2 Apple M4 16 GiB: insufficient memory (10.0 GiB free at most); ultra-1: too slow (10th percentile; median 35.0). Remedies, smallest change first: spec.serving.contextTokens: 12372 or spec.serving.maxConcurrency: 3 for ultra-1; add a Mac');
  assert.equal(summary, '0/3 nodes are available');
  assert.deepEqual(reasons, [
    { where: '2 Apple M4 16 GiB', why: 'insufficient memory (10.0 GiB free at most)' },
    { where: 'ultra-1', why: 'too slow (10th percentile; median 35.0)' },
  ]);
  assert.deepEqual(remedies, ['spec.serving.contextTokens: 12372 for ultra-1', 'spec.serving.maxConcurrency: 3 for ultra-1', 'add a Mac']);
  assert.deepEqual(explain('worker exited'), { summary: 'worker exited', reasons: [], remedies: [] });
});

test('decode step of a mixture reads only the active experts', () => {
  const model = { name: 'moe', architecture: 'moe', weightsBytes: 0, kvBytesPerToken: 0, maxContextTokens: 1, cost: { everyStepBytes: 100, expertBytes: 1600, layers: [{ count: 1, feedForward: { experts: 128, activeExperts: 8 } }] } };
  assert.equal(bytesPerStep(model), 200);
  assert.equal(bytesPerStep({ ...model, cost: undefined, packedCost: JSON.stringify(model.cost) }), 200);
  assert.equal(bytesPerStep({ ...model, cost: undefined, packedCost: '{' }), undefined);
  assert.equal(bytesPerStep({ ...model, kvBytesPerToken: 2 }, 2, 10), 100 + 1600 * (1 - (120 / 128) ** 2) + 40);
  assert.deepEqual(ticks([0.5, 10]), [0.5, 1, 2, 5, 10]);
});

test('quantiles come from the requests between two readings', () => {
  const reading = (fast: number, slow: number) => parseMetrics(`# HELP x y\nx_bucket{le="1"} ${fast}\nx_bucket{le="2"} ${fast + slow}\nx_bucket{le="+Inf"} ${fast + slow}\nx_total{code="2xx"} ${fast}\nx_total{code="5xx"} ${slow}\n`);
  const [before, after] = [reading(100, 0), reading(100, 10)];
  assert.equal(quantile(added(buckets(after, 'x'), buckets(before, 'x')), 0.5), 1.5);
  assert.equal(quantile(added(buckets(before, 'x'), buckets(after, 'x')), 0.5), 0.5, 'a restarted process starts at 0');
  assert.equal(quantile([], 0.5), undefined);
  assert.equal(total(after, 'x_total'), 110);
  assert.equal(total(after, 'missing'), undefined);
});

test('chat chunks have text, usage and errors', () => {
  assert.equal(parseChunk('data: {"choices":[{"delta":{"content":"hi"}}]}')?.text, 'hi');
  assert.equal(parseChunk('data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":5}}')?.completionTokens, 5);
  assert.equal(parseChunk('data: {"error":{"message":"failed"}}')?.error, 'failed');
  for (const line of ['', ': comment', 'data: [DONE]', 'event: x']) assert.equal(parseChunk(line), undefined);
  assert.equal(decodeSpeed(11, 1000, 2000), 10);
  assert.equal(decodeSpeed(1, 1000, 1000), undefined);
});

test('increase in the last minute is that of the readings, and unknown after a restart', () => {
  const reading = (tick: number, text: string) => ({ tick, counts: totals(parseMetrics(text), 'requests_total', ({ key }) => key!) });
  const readings = [reading(0, 'requests_total{key="a"} 100'), reading(50, 'requests_total{key="a",model="x"} 101\nrequests_total{key="a",model="y"} 4'), reading(80, 'requests_total{key="a"} 120\nrequests_total{key="b"} 2')];
  assert.equal(lastMinute(readings, 'a'), 15);
  assert.equal(lastMinute(readings, 'b'), 2, 'a counter appears with its first increment');
  assert.equal(lastMinute(readings, 'c'), 0);
  assert.equal(lastMinute(readings.slice(0, 1), 'a'), undefined);
  assert.equal(lastMinute([...readings, reading(85, 'requests_total{key="a"} 3')], 'a'), undefined);
});
