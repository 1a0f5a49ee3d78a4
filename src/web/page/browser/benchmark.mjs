// Main-thread work, memory and first paint of the page with 1,000 Macs, 5,000 replicas and 50 changes
// per second. The feed is synthetic: a server in this process answers lists and watches in the form of
// the real one, so that the page runs its own code from the network to the screen.
import { createServer } from 'node:http';
import { readFile, readdir } from 'node:fs/promises';
import { pathToFileURL } from 'node:url';
import { gzipSync } from 'node:zlib';
import { launch } from './browser.mjs';

// `benchmark.mjs [SECONDS]` measures each view; `benchmark.mjs memory [MINUTES]` measures the heap of one;
// `benchmark.mjs paint` measures the first paint only. BEFORE=DIR compares it with the files of another build.
const MEMORY = process.argv[2] === 'memory';
const PAINT = process.argv[2] === 'paint';
const MINUTES = Number(process.argv[3] ?? 10);
const SECONDS = Number((MEMORY || PAINT ? undefined : process.argv[2]) ?? 60);
const MACS = 1000;
const REPLICAS = 5000;
const DEPLOYMENTS = 40;
const CHANGES_PER_SECOND = 50;
const BUDGET = { compressed: 80_000, firstPaintMs: 200, frameMs: 33, heapGrowthMB: 2 };
/** Until then, all objects of the list are replaced by objects of events, which need more memory. */
const WARM_MINUTES = 3;

const at = '2026-01-01T00:00:00Z';
let version = 1;
const conditions = (...types) => types.map((type) => ({ type, status: 'True', reason: 'AgentReady', message: '', lastTransitionTime: at }));
const meta = (name, namespace) => ({ name, namespace, uid: `${namespace ?? ''}/${name}`, resourceVersion: String(version++), creationTimestamp: at, generation: 1 });
const CHIPS = [['Apple M4', 16, 120e9], ['Apple M4 Pro', 48, 273e9], ['Apple M4 Max', 64, 546e9], ['Apple M3 Ultra', 256, 819e9]];

const nodes = Array.from({ length: MACS }, (_, index) => {
  const [name, memory, bandwidth] = CHIPS[index % CHIPS.length];
  return {
    apiVersion: 'rooflet.dev/v1alpha1', kind: 'FleetNode', metadata: { ...meta(`mac-${index}`), labels: { rack: `r${index % 20}` } }, spec: {},
    status: {
      chip: { name, gpuCores: 10 + (index % 4) * 10, cpuCores: 10 }, capacity: { memory: `${memory}Gi` }, allocatable: { memory: `${Math.floor(memory * 0.7)}Gi` },
      dataSheet: { memoryBytesPerSecond: bandwidth, source: 'data sheet' },
      speed: { basis: 'Measured', engine: 'mlx', measuredAt: at, verdict: 'Plausible', readBytesPerSecond: bandwidth * 0.91, decodeBytesPerSecond: bandwidth * 0.88, thermalState: 'Nominal', powerSource: 'AC' },
      conditions: conditions('Ready'),
    },
  };
});
const deployments = Array.from({ length: DEPLOYMENTS }, (_, index) => ({
  apiVersion: 'rooflet.dev/v1alpha1', kind: 'ModelDeployment', metadata: meta(`model-${index}`, 'default'),
  spec: { replicas: REPLICAS / DEPLOYMENTS, model: { source: 'local://qwen3-8b-4bit' } },
  status: { observedGeneration: 1, readyReplicas: REPLICAS / DEPLOYMENTS, tokensPerSecond: '36.5/35.1', timeToFirstToken: '2.2s/2.4s', rollout: { revision: 'r', stableRevision: 'r', predictedTokensPerSecond: 900 }, conditions: conditions('Ready', 'Available') },
}));
const replicas = Array.from({ length: REPLICAS }, (_, index) => ({
  apiVersion: 'rooflet.dev/v1alpha1', kind: 'ModelReplica',
  metadata: { ...meta(`model-${index % DEPLOYMENTS}-abcdefgh-${index}`, 'default'), labels: { 'rooflet.dev/deployment': `model-${index % DEPLOYMENTS}`, 'rooflet.dev/revision': 'r' } },
  spec: { model: { source: 'local://qwen3-8b-4bit' }, serving: { name: `model-${index % DEPLOYMENTS}`, contextTokens: 8192, maxConcurrency: 4 }, nodeName: `mac-${index % MACS}` },
  status: {
    phase: 'Ready', reservedMemory: '2Gi', restarts: 0, model: { weightsBytes: 2 ** 30, contextTokens: 8192, architecture: 'qwen3' },
    admission: { admitted: true, binding: 'Bandwidth', chipTimePercent: 12, freeChipTimePercent: 80, memory: { weightsBytes: 2 ** 30, kvBytes: 2 ** 29, activationBytes: 1e8, runtimeBytes: 4e8, limitBytes: 1e10, freeBytes: 4e9 }, speed: { tokensPerSecond: { p10: 22, p50: 36, p90: 60 }, bytesPerToken: 2e9, timeToFirstTokenSeconds: { p10: 1, p50: 2, p90: 3 }, promptTokens: 2000, basis: 'Measured', timeToFirstTokenBasis: 'Measured' } },
    requests: { running: 1, waiting: 0, completed: 10, failed: 0 },
    measured: { tokensPerSecond: '35.1', timeToFirstTokenSeconds: '2.4', requests: 10, predicted: { tokensPerSecond: { p10: 30, p50: 36, p90: 40 }, timeToFirstTokenSeconds: { p10: 1, p50: 2, p90: 3 }, streams: 1, promptTokens: 500, contextTokens: 700, basis: 'Measured' } },
    conditions: conditions('Scheduled', 'Admitted', 'Ready'),
  },
}));
const kinds = { fleetnodes: nodes, modeldeployments: deployments, modelreplicas: replicas };

const TYPES = { html: 'text/html', js: 'text/javascript', css: 'text/css', svg: 'image/svg+xml' };
/** Returns the compressed files of a build by path. */
async function filesOf(directory) {
  const found = {};
  for (const name of await readdir(directory)) {
    const type = TYPES[name.split('.').pop()];
    found[name === 'index.html' ? '/' : `/${name}`] = { type, body: gzipSync(await readFile(new URL(name, directory))) };
  }
  return found;
}

const files = await filesOf(new URL('../dist/', import.meta.url));
const compressed = Object.values(files).reduce((sum, { body }) => sum + body.length, 0);

const watchers = new Set();
const answer = (files) => (request, response) => {
  const url = new URL(request.url, 'http://localhost');
  const json = (value) => {
    response.writeHead(200, { 'content-type': 'application/json' });
    response.end(JSON.stringify(value));
  };
  const file = files[url.pathname];
  if (file) {
    response.writeHead(200, { 'content-type': file.type, 'content-encoding': 'gzip' });
    return response.end(file.body);
  }
  if (url.pathname === '/word') {
    response.writeHead(200, { 'content-type': 'text/html' });
    return response.end('<!doctype html><title>word</title>word');
  }
  if (url.pathname === '/session') return json({ user: 'benchmark', groups: [], csrfToken: 'x', expiresAt: at, gateway: true });
  if (url.pathname === '/proxy/watch') {
    response.writeHead(200, { 'content-type': 'application/x-ndjson' });
    response.write('\n');
    url.searchParams.getAll('path').forEach((_, watch) => response.write(`${JSON.stringify({ watch, status: 200 })}\n`));
    const paths = url.searchParams.getAll('path').map((path) => /\/(\w+)\?/.exec(path)[1]);
    const watcher = { response, index: (kind) => paths.indexOf(kind) };
    watchers.add(watcher);
    response.on('close', () => watchers.delete(watcher));
    return undefined;
  }
  const kind = /\/(\w+)$/.exec(url.pathname)?.[1];
  const all = kinds[kind] ?? [];
  const from = Number(url.searchParams.get('continue') ?? 0);
  const limit = Number(url.searchParams.get('limit') ?? 500);
  const next = from + limit < all.length ? String(from + limit) : undefined;
  return json({ kind: 'List', metadata: { resourceVersion: String(version), continue: next }, items: all.slice(from, from + limit) });
};
const servers = [];
async function serve(files) {
  const server = createServer(answer(files));
  servers.push(server);
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
  return `http://127.0.0.1:${server.address().port}`;
}
const url = await serve(files);

let sent = 0;
const turns = { fleetnodes: 0, modelreplicas: 0 };
function change() {
  sent += 1;
  const kind = sent % 5 === 0 ? 'fleetnodes' : 'modelreplicas';
  const all = kinds[kind];
  // In turn, so that all objects of the list are replaced after a known time. Neighbours change one after
  // another in different parts of the table.
  const at = (turns[kind]++ * 367) % all.length;
  const object = structuredClone(all[at]);
  object.metadata.resourceVersion = String(version++);
  if (kind === 'modelreplicas') {
    object.status.requests.running = sent % 4;
    object.status.measured.tokensPerSecond = (30 + (sent % 100) / 10).toFixed(1);
    object.status.admission.chipTimePercent = 5 + (sent % 15);
  } else {
    object.status.conditions[0].message = String(sent);
  }
  all[at] = object;
  for (const { response, index } of watchers) response.write(`${JSON.stringify({ watch: index(kind), event: { type: 'MODIFIED', object } })}\n`);
}

const quantile = (values, share) => [...values].sort((a, b) => a - b)[Math.min(values.length - 1, Math.floor(share * values.length))] ?? 0;
const browser = await launch();
let failed = false;
const report = (name, value, unit, limit) => {
  const over = limit !== undefined && value > limit;
  failed ||= over;
  console.log(`${name}: ${typeof value === 'number' ? value.toFixed(1) : value} ${unit}${limit === undefined ? '' : ` (at most ${limit} ${unit}${over ? ', EXCEEDED' : ''})`}`);
};
try {
  report('compressed size', compressed, 'B', BUDGET.compressed);
  const viewport = { width: 1440, height: 900 };
  // The paint of one word shows what the browser needs on this machine. Each run has an empty cache.
  const paints = { [`${url}/`]: [], [`${url}/word`]: [] };
  const other = process.env.BEFORE && `${await serve(await filesOf(pathToFileURL(`${process.env.BEFORE}/`)))}/`;
  if (other) paints[other] = [];
  for (let run = 0; run < 15; run++) {
    for (const [address, times] of Object.entries(paints)) {
      const fresh = await browser.newContext({ viewport });
      const page = await fresh.newPage();
      await page.goto(address);
      await page.waitForFunction(() => performance.getEntriesByName('first-contentful-paint').length > 0);
      times.push(await page.evaluate(() => performance.getEntriesByName('first-contentful-paint')[0].startTime));
      await fresh.close();
    }
  }
  const spread = (times) => `${quantile(times, 0.5).toFixed(0)} (${Math.min(...times).toFixed(0)} to ${Math.max(...times).toFixed(0)})`;
  report('first contentful paint, median of 15', quantile(paints[`${url}/`], 0.5), 'ms', BUDGET.firstPaintMs);
  report('  spread', spread(paints[`${url}/`]), 'ms');
  report('  of a document of one word', spread(paints[`${url}/word`]), 'ms');
  if (other) report('  of the other build', spread(paints[other]), 'ms');
  const views = PAINT || MEMORY ? [] : ['#/macs', '#/replicas', '#/macs/mac-1'];
  const context = await browser.newContext({ viewport });
  const page = await context.newPage();
  const loading = Date.now();
  await page.goto(`${url}/#/macs`);
  await page.getByRole('row').nth(5).waitFor();
  report('first rows of 1,000 Macs and 5,000 replicas', Date.now() - loading, 'ms');
  const session = await context.newCDPSession(page);
  await session.send('Performance.enable');
  const metrics = async () => Object.fromEntries((await session.send('Performance.getMetrics')).metrics.map(({ name, value }) => [name, value]));
  const heap = async () => {
    await session.send('HeapProfiler.collectGarbage');
    return (await metrics()).JSHeapUsedSize / 1e6;
  };
  if (MEMORY) await memory(page, heap);
  for (const view of views) {
    await page.goto(`${url}/${view}`);
    await page.getByRole('row').nth(2).waitFor();
    await page.waitForTimeout(1500);
    const events = [];
    await session.send('Tracing.start', { transferMode: 'ReportEvents', traceConfig: { includedCategories: ['disabled-by-default-devtools.timeline', 'devtools.timeline', 'toplevel', 'blink.user_timing'] } }).catch(() => {});
    session.on('Tracing.dataCollected', ({ value }) => events.push(...value));
    const before = await heap();
    const begun = await metrics();
    const timer = setInterval(change, 1000 / CHANGES_PER_SECOND);
    const start = Date.now();
    while (Date.now() - start < SECONDS * 1000) {
      await page.mouse.wheel(0, 400);
      await page.waitForTimeout(1000);
    }
    clearInterval(timer);
    const ended = await metrics();
    const complete = new Promise((resolve) => session.once('Tracing.tracingComplete', resolve));
    await session.send('Tracing.end');
    await complete;
    const work = frameWork(events);
    console.log(`\n${view}, ${SECONDS} s, scrolling:`);
    report('  main-thread work of a frame, p50', quantile(work, 0.5), 'ms');
    report('  main-thread work of a frame, p95', quantile(work, 0.95), 'ms', BUDGET.frameMs);
    report('  main-thread work of a frame, longest', Math.max(...work), 'ms');
    report('  main thread busy', (100 * (ended.TaskDuration - begun.TaskDuration)) / (ended.Timestamp - begun.Timestamp), '%');
    report('  heap after collection, before and after', `${before.toFixed(1)} → ${(await heap()).toFixed(1)}`, 'MB');
    session.removeAllListeners('Tracing.dataCollected');
  }
} finally {
  await browser.close();
  for (const server of servers) {
    server.closeAllConnections();
    server.close();
  }
}
process.exit(failed ? 1 : 0);

/** Reads the heap after a collection once per minute while objects change. */
async function memory(page, heap) {
  await page.goto(`${url}/#/replicas`);
  await page.getByRole('row').nth(2).waitFor();
  const timer = setInterval(change, 1000 / CHANGES_PER_SECOND);
  const read = [];
  console.log(`\n#/replicas, ${MINUTES} min, scrolling:`);
  for (let minute = 0; minute <= MINUTES; minute++) {
    if (minute > 0) {
      const end = Date.now() + 60_000;
      while (Date.now() < end) {
        await page.mouse.wheel(0, minute % 2 === 0 ? 400 : -400);
        await page.waitForTimeout(1000);
      }
    }
    read.push(await heap());
    console.log(`  heap after ${minute} min: ${read.at(-1).toFixed(1)} MB`);
  }
  clearInterval(timer);
  report(`  growth of the heap after minute ${WARM_MINUTES}`, read.at(-1) - read[WARM_MINUTES], 'MB', BUDGET.heapGrowthMB);
}

/** Sums the CPU time of the page's main thread per frame of 16.7 ms in which it did any work. */
function frameWork(events) {
  const tasks = events.filter((event) => event.ph === 'X' && /RunTask$/.test(event.name) && event.dur > 0);
  const byThread = new Map();
  for (const event of events) if (event.name === 'UpdateLayoutTree' || event.name === 'Layout' || event.name === 'FunctionCall') byThread.set(`${event.pid}/${event.tid}`, (byThread.get(`${event.pid}/${event.tid}`) ?? 0) + 1);
  const [main] = [...byThread].sort((a, b) => b[1] - a[1])[0] ?? [];
  const frames = new Map();
  for (const { pid, tid, ts, dur, tdur } of tasks) {
    if (`${pid}/${tid}` !== main) continue;
    const frame = Math.floor(ts / 16_667);
    frames.set(frame, (frames.get(frame) ?? 0) + (tdur ?? dur) / 1000);
  }
  return [...frames.values()].filter((value) => value > 0.2);
}
