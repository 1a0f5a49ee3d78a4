// Steps of a walk, and what every step may use.
import assert from 'node:assert/strict';
import { readFile } from 'node:fs/promises';

const AXE = await readFile(new URL('../node_modules/axe-core/axe.min.js', import.meta.url), 'utf8');
const RULES = { runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa', 'best-practice'] };

let failed = 0;
let current;

/** Page of the picture that a failed step leaves in the directory SHOTS. */
export function picture(page) {
  current = page;
}

/** Runs a step, or skips it if its name does not match ONLY. A failed step does not end the walk. */
export async function step(name, run) {
  if (process.env.ONLY && !new RegExp(process.env.ONLY).test(name)) return;
  const begun = Date.now();
  const took = () => `${((Date.now() - begun) / 1000).toFixed(1)} s`;
  try {
    await run();
    console.log(`ok   ${name} (${took()})`);
  } catch (error) {
    failed += 1;
    if (process.env.SHOTS) await current?.screenshot({ path: `${process.env.SHOTS}/failed-${failed}.png` }).catch(() => {});
    console.log(`FAIL ${name} (${took()})\n${error.stack}`);
  }
}

export function failures() {
  return failed;
}

/** Runs axe-core in both color schemes, without an inline script, which the page's policy forbids: as an isolated script of the driver. */
export async function axe(page, where) {
  await page.evaluate(AXE);
  for (const colorScheme of ['dark', 'light']) {
    await page.emulateMedia({ colorScheme });
    const { violations } = await page.evaluate((options) => globalThis.axe.run(document, options), RULES);
    const found = violations.map((violation) => `${violation.id}: ${violation.help}\n  ${violation.nodes.slice(0, 4).map((node) => `${node.target.join(' ')} ${node.any[0]?.message ?? ''}`).join('\n  ')}`);
    assert.deepEqual(found, [], `axe-core in ${where} (${colorScheme})`);
  }
}
