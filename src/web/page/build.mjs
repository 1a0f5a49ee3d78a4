// Builds dist/ from src/. The output depends only on the sources and on package-lock.json.
import { build } from 'esbuild';
import { copyFile, mkdir, readFile, readdir, rm, writeFile } from 'node:fs/promises';
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
const options = {
  bundle: true,
  minify: true,
  format: 'esm',
  target: ['es2022', 'safari16'],
  jsx: 'automatic',
  jsxImportSource: 'preact',
  legalComments: 'none',
  charset: 'utf8',
  plugins: [unusedFunctions],
};
await build({ ...options, entryPoints: { page: path('src/main.tsx') }, outdir: path('dist') });
/** Returns the built text of a source. */
const built = async (name) => (await build({ ...options, entryPoints: [path(name)], write: false })).outputFiles[0].text.trim();
// The document contains styles and its first script, so that its first paint needs no other file. The
// server's content security policy has their hashes.
let html = await readFile(path('src/index.html'), 'utf8');
for (const [element, source] of [['style', 'src/style.css'], ['script', 'src/boot.ts']]) {
  const text = await built(source);
  if (text.includes(`</${element}`)) throw new Error(`${source} ends its element`);
  html = html.replace(`<${element}></${element}>`, () => `<${element}>${text}</${element}>`);
}
await writeFile(path('dist/index.html'), html);
await copyFile(path('src/icon.svg'), path('dist/icon.svg'));

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
