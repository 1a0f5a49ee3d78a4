// A control plane with simulated Macs for the browser tests, in a temporary directory.
import { spawn, execFileSync } from 'node:child_process';
import { mkdtemp, readFile, rename, rm, writeFile } from 'node:fs/promises';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

const ROOT = new URL('../../../..', import.meta.url).pathname;
const DEADLINE_MS = 120_000;
const KUBECTL = process.env.KUBECTL || 'kubectl';

const FLEET = `fleet:
  macs:
    - {name: mini, chip: M4, gpuCores: 10, memory: 16Gi, count: 6}
    - {name: pro, chip: M4 Pro, gpuCores: 20, memory: 48Gi, count: 4}
    - {name: studio, chip: M4 Max, gpuCores: 40, memory: 64Gi, count: 2}
    - {name: ultra, chip: M3 Ultra, gpuCores: 80, memory: 256Gi, count: 1}
models:
  - {name: qwen3-8b-4bit, model: qwen3-8b, quantization: mlx4}
  - {name: qwen3-30b-a3b-4bit, model: qwen3-30b-a3b, quantization: mlx4}
  - {name: llama3.3-70b-4bit, model: llama3.3-70b, quantization: mlx4, on: [ultra]}
`;

const deployment = (name, spec) => ({ apiVersion: 'rooflet.dev/v1alpha1', kind: 'ModelDeployment', metadata: { name, namespace: 'default' }, spec });
const qwen = { source: 'local://qwen3-8b-4bit' };

/** Objects that give every view something to show. */
export const OBJECTS = [
  deployment('chat', {
    replicas: 4, model: qwen, serving: { contextTokens: 8192, maxConcurrency: 4 },
    objectives: { decodeTokensPerSecond: 10, timeToFirstToken: { max: '8s', atPromptTokens: 2000 } },
    strategy: { rollingUpdate: { minThroughput: '60%', maxSurge: 1 } },
  }),
  deployment('assistant', { replicas: 2, model: { source: 'local://qwen3-30b-a3b-4bit' }, serving: { contextTokens: 16384, maxConcurrency: 4 } }),
  deployment('research', { replicas: 1, model: { source: 'local://llama3.3-70b-4bit' }, serving: { contextTokens: 32768, maxConcurrency: 2 } }),
  // No simulated Mac reaches this objective.
  deployment('code', { replicas: 2, model: qwen, serving: { name: 'qwen-coder', contextTokens: 16384, maxConcurrency: 4 }, objectives: { decodeTokensPerSecond: 90 } }),
  deployment('summaries', {
    replicas: 5, model: qwen, serving: { contextTokens: 4096, maxConcurrency: 2 },
    strategy: { type: 'Canary', canary: { steps: [{ setWeight: 20 }, { pause: {} }, { setWeight: 60 }, { analysis: {} }] } },
  }),
  {
    apiVersion: 'rooflet.dev/v1alpha1', kind: 'PerformanceClaim', metadata: { name: 'blog-77', namespace: 'default' },
    spec: {
      source: 'https://example.org/fast-gemma', hardware: { chip: 'Apple M4 Pro', gpuCores: 20, memory: '24 GB', bandwidth: '273 GB/s' },
      model: { name: 'gemma-3-12b-it-4bit', fileSize: '8.03 GB' }, workload: { prompt: '4K', timing: 'decodeOnly' },
      figures: [{ kind: 'decodeTokensPerSecond', value: 77.7 }, { kind: 'prefillTokensPerSecond', value: 196, under: { prompt: 3018 } }],
      statements: ['16829/571 = 29.5'],
    },
  },
  {
    apiVersion: 'rooflet.dev/v1alpha1', kind: 'CapacityPlan', metadata: { name: 'next-year', namespace: 'default' },
    spec: {
      demand: [
        { model: 'qwen3-8b', quantization: 'mlx4', requestsPerSecond: 2, promptTokens: 900, answerTokens: 300, replicas: 2 },
        { model: 'qwen3-30b-a3b', quantization: 'mlx4', requestsPerSecond: 1, promptTokens: 1500, answerTokens: 400 },
      ],
      fleet: { macs: [{ chip: 'M4', memory: '16Gi', count: 6, price: 599, watts: 40 }, { chip: 'M4 Pro', gpuCores: 20, memory: '48Gi', count: 4, price: 1799, watts: 90 }] },
      catalogue: [{ chip: 'M4 Max', gpuCores: 40, memory: '64Gi', price: 2699, watts: 145 }, { chip: 'M3 Ultra', gpuCores: 80, memory: '256Gi', price: 7999, watts: 270 }],
    },
  },
];

export async function until(what, check, deadlineMs = DEADLINE_MS) {
  const end = Date.now() + deadlineMs;
  let last;
  for (;;) {
    try {
      const found = await check();
      if (found) return found;
    } catch (error) {
      last = error;
    }
    if (Date.now() > end) throw new Error(`timeout: ${what}${last ? `: ${last.message}` : ''}`);
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
}

async function freePort() {
  const server = createServer();
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
  const { port } = server.address();
  await new Promise((resolve) => server.close(resolve));
  return port;
}

/** Starts the server of ROOFLET (default: the debug build). `url` and `token` sign in; `stop()` ends it. */
export async function startFleet() {
  const binary = process.env.ROOFLET ?? join(ROOT, 'target/debug/rooflet');
  const directory = await mkdtemp(join(tmpdir(), 'rooflet-web-'));
  await writeFile(join(directory, 'fleet.yaml'), FLEET);
  const [api, gateway, web] = [await freePort(), await freePort(), await freePort()];
  const args = [
    'server', `--data-dir=${directory}/data`, `--listen=127.0.0.1:${api}`, `--gateway-listen=127.0.0.1:${gateway}`,
    `--web-listen=127.0.0.1:${web}`, `--simulate=${directory}/fleet.yaml`,
  ];
  let log = '';
  const start = (of) => {
    const child = spawn(binary, of, { stdio: ['ignore', 'pipe', 'pipe'] });
    const keep = (chunk) => { log = (log + chunk).slice(-20_000); };
    child.stdout.on('data', keep);
    child.stderr.on('data', keep);
    return child;
  };
  let child = start(args);
  const url = `http://127.0.0.1:${web}`;
  const kubeconfig = join(directory, 'data/kubeconfig');
  const kubectl = (...command) => execFileSync(KUBECTL, [`--kubeconfig=${kubeconfig}`, ...command], { encoding: 'utf8', stdio: ['pipe', 'pipe', 'pipe'], maxBuffer: 64 << 20 });
  const apply = (object) => execFileSync(KUBECTL, [`--kubeconfig=${kubeconfig}`, 'apply', '-f', '-'], { input: JSON.stringify(object), stdio: ['pipe', 'pipe', 'pipe'] });
  const end = async (of) => {
    const exited = new Promise((resolve) => of.once('exit', resolve));
    of.kill('SIGTERM');
    await exited;
  };
  const others = [];
  const stop = async () => {
    await Promise.all([child, ...others].map(end));
    await rm(directory, { recursive: true, force: true });
  };
  try {
    await until('the page answers', async () => (await fetch(url)).ok);
    const token = (await readFile(join(directory, 'data/token'), 'utf8')).split('\n')[0].trim();
    await until('all Macs are ready', () => (kubectl('get', 'mac', '--no-headers').match(/True/g) ?? []).length === 13);
    const restart = async () => {
      await end(child);
      child = start(args);
    };
    const data = join(directory, 'data');
    const server = (...verb) => execFileSync(binary, ['server', ...verb, `--data-dir=${data}`], { stdio: ['ignore', 'pipe', 'pipe'] });
    /** Makes a backup, and returns the function that replaces the running server by one with the objects of the backup. */
    const backup = async (name) => {
      const copy = join(directory, name);
      server('backup', copy);
      return async () => {
        await end(child);
        await rename(data, `${data}-before-${name}`);
        server('restore', copy);
        child = start(args);
      };
    };
    /** Serves the page in a process of its own, so that sessions outlive the API server. Returns its address. */
    const separateWeb = async () => {
      const port = await freePort();
      const own = start(['server', '--roles=web', `--kubeconfig=${kubeconfig}`, `--web-listen=127.0.0.1:${port}`, `--gateway-listen=127.0.0.1:${gateway}`]);
      others.push(own);
      await until('the separate page answers', async () => (await fetch(`http://127.0.0.1:${port}`)).ok);
      return `http://127.0.0.1:${port}`;
    };
    /** Returns certificate and private key of the gateway, in PEM. */
    const clientCertificate = async () => {
      const text = await readFile(join(directory, 'data/gateway.kubeconfig'), 'utf8');
      return ['client-certificate-data', 'client-key-data'].map((field) => Buffer.from(new RegExp(`${field}[^A-Za-z0-9+/]+([A-Za-z0-9+/=]+)`).exec(text)[1], 'base64').toString());
    };
    return { url, token, clientCertificate, kubectl, apply, kubeconfig, binary, gateway: `http://127.0.0.1:${gateway}`, restart, backup, separateWeb, stop, log: () => log };
  } catch (error) {
    await stop().catch(() => {});
    throw new Error(`${error.message}\n${log}`);
  }
}

/** Creates the objects, sends some requests, and starts a canary that pauses. Returns the function that sends a request. */
export async function fill(fleet) {
  const { kubectl, gateway } = fleet;
  fleet.apply({ apiVersion: 'v1', kind: 'List', items: OBJECTS });
  const created = execFileSync(fleet.binary, ['key', 'create', 'team-a', '--tokens-per-minute=60k', '--tokens-per-day=2M', `--kubeconfig=${fleet.kubeconfig}`], { encoding: 'utf8' });
  const key = /sk-rf-\S+/.exec(created)[0];
  const ready = ['chat', 'assistant', 'research', 'summaries'];
  for (const name of ready) kubectl('wait', '--for=condition=Ready', `mdep/${name}`, '--timeout=120s');
  /** Sends a request, every second one with the key. */
  const ask = (model, index) => fetch(`${gateway}/v1/chat/completions`, {
    method: 'POST', headers: { 'content-type': 'application/json', ...(index % 2 === 0 ? { authorization: `Bearer ${key}` } : {}) },
    body: JSON.stringify({ model, messages: [{ role: 'user', content: `Question ${index}` }], max_tokens: 24 }),
  }).then((response) => response.text());
  await Promise.all(ready.flatMap((model) => [1, 2, 3, 4].map((index) => ask(model, index))));
  kubectl('patch', 'mdep/summaries', '--type=merge', '-p', '{"spec":{"serving":{"contextTokens":6144}}}');
  await until('the canary pauses', () => kubectl('get', 'mdep/summaries', '-o', 'jsonpath={.status.rollout.step}') === '1');
  await until('measured speeds are reported', () => /\/[\d.]+$/.test(kubectl('get', 'mdep/chat', '-o', 'jsonpath={.status.tokensPerSecond}')));
  return ask;
}
