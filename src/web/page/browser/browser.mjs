// Chromium of the system, driven without a download.
import { createHash } from 'node:crypto';
import { existsSync } from 'node:fs';
import { readFile } from 'node:fs/promises';
import { chromium } from 'playwright-core';

const FILES = { '/': 'index.html', '/page.js': 'page.js', '/icon.svg': 'icon.svg' };
const PATHS = ['/usr/bin/chromium', '/usr/bin/chromium-browser', '/usr/bin/google-chrome', '/Applications/Google Chrome.app/Contents/MacOS/Google Chrome'];

export async function launch() {
  const executablePath = process.env.CHROMIUM ?? PATHS.find(existsSync);
  if (!executablePath) throw new Error('no Chromium found: install the package chromium, or set CHROMIUM to its path');
  return chromium.launch({ executablePath, args: process.getuid?.() === 0 ? ['--no-sandbox'] : [] });
}

/** Opens a page, and records everything that must not happen. Headers are those of the server; the
 *  files are those of dist/, which may be newer than the files in the binary. */
export async function openPage(browser, options) {
  const hashes = await inlineHashes();
  const context = await browser.newContext({ reducedMotion: 'reduce', ...options });
  const page = await context.newPage();
  await context.route((url) => url.pathname in FILES, async (route) => {
    try {
      const body = await readFile(new URL(`../dist/${FILES[new URL(route.request().url()).pathname]}`, import.meta.url));
      const response = await route.fetch();
      // The hashes are those of the newer document.
      const policy = (response.headers()['content-security-policy'] ?? '').replace(/((?:style|script)-src(?: 'self')?)(?: 'sha256-[^']+')+/g, (_, directive) => [directive, ...hashes[directive.startsWith('style') ? 'style' : 'script']].join(' '));
      await route.fulfill({ response, body, headers: { ...response.headers(), 'content-security-policy': policy } });
    } catch {
      await route.abort().catch(() => {});
    }
  });
  const problems = [];
  page.on('pageerror', (error) => problems.push(`uncaught: ${error.message}`));
  page.on('console', (message) => {
    // The browser logs each failed request; the tests cause some.
    if (message.type() === 'error' && !/Failed to load resource/.test(message.text())) problems.push(`console: ${message.text()}`);
  });
  const hosts = new Set();
  page.on('request', (request) => hosts.add(new URL(request.url()).host));
  return { context, page, problems, hosts };
}

/** Returns the sources of a content security policy that permit the inline elements of the document. */
async function inlineHashes() {
  const html = await readFile(new URL('../dist/index.html', import.meta.url), 'utf8');
  const of = (element) => [...html.matchAll(new RegExp(`<${element}>(.*?)</${element}>`, 'gs'))].map(([, text]) => `'sha256-${createHash('sha256').update(text).digest('base64')}'`);
  return { style: of('style'), script: of('script') };
}

export async function signIn(page, url, token) {
  await page.goto(url);
  await page.getByLabel('bearer token').fill(token);
  await page.getByRole('button', { name: 'Sign in' }).click();
  await page.getByRole('heading', { name: 'Fleet' }).waitFor();
}
