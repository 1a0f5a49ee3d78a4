// Builds dist/ from src/. The output depends only on the sources and on package-lock.json.
import { build } from 'esbuild';
import { copyFile, mkdir, readFile, readdir, rm } from 'node:fs/promises';
import { brotliCompressSync, gzipSync } from 'node:zlib';

const BUDGET_BYTES = 80_000;
/** Removes the functions that uPlot publishes as properties, of which the page uses none. */
const unusedFunctions = {
  name: 'unused-functions',
  setup: ({ onLoad }) => onLoad({ filter: /uPlot\.esm\.js$/ }, async ({ path: file }) => {
    const text = await readFile(file, 'utf8');
    const [start, end] = [text.indexOf('\nuPlot.assign = '), text.lastIndexOf('\nexport { uPlot as default };')];
    if (start < 0 || end < start) throw new Error(`${file} has changed: adapt build.mjs`);
    return { contents: text.slice(0, start) + text.slice(end) };
  }),
};

const root = new URL('.', import.meta.url);
const path = (name) => new URL(name, root).pathname;

await rm(path('dist'), { recursive: true, force: true });
await mkdir(path('dist'), { recursive: true });
await build({
  entryPoints: { page: path('src/main.tsx'), style: path('src/style.css') },
  outdir: path('dist'),
  bundle: true,
  minify: true,
  format: 'esm',
  target: ['es2022', 'safari16'],
  jsx: 'automatic',
  jsxImportSource: 'preact',
  legalComments: 'none',
  charset: 'utf8',
  plugins: [unusedFunctions],
});
for (const name of ['index.html', 'icon.svg']) {
  await copyFile(path(`src/${name}`), path(`dist/${name}`));
}

let total = 0;
for (const name of (await readdir(path('dist'))).sort()) {
  const bytes = await readFile(path(`dist/${name}`));
  const gzip = gzipSync(bytes, { level: 9 }).length;
  total += gzip;
  console.log(`${name}: ${bytes.length} B, gzip ${gzip} B, brotli ${brotliCompressSync(bytes).length} B`);
}
console.log(`total: gzip ${total} B of at most ${BUDGET_BYTES} B`);
if (total > BUDGET_BYTES) {
  console.error(`dist/ exceeds its budget: ${total} B > ${BUDGET_BYTES} B compressed`);
  process.exit(1);
}
