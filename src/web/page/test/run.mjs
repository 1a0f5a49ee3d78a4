// Bundles each test for Node and runs it.
import { build } from 'esbuild';
import { readdir, rm } from 'node:fs/promises';
import { spawnSync } from 'node:child_process';

const here = new URL('.', import.meta.url).pathname;
await rm(`${here}build`, { recursive: true, force: true });
const tests = (await readdir(here)).filter((name) => name.endsWith('.test.ts'));
await build({ entryPoints: tests.map((name) => here + name), outdir: `${here}build`, bundle: true, platform: 'node', format: 'esm', outExtension: { '.js': '.mjs' } });
const files = tests.map((name) => `${here}build/${name.replace(/\.ts$/, '.mjs')}`);
process.exit(spawnSync(process.execPath, ['--test', ...files], { stdio: 'inherit' }).status ?? 1);
