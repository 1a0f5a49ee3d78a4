// Pictures of every view for the documentation: docs/images/web.
import { mkdir, writeFile } from 'node:fs/promises';
import { launch, openPage, signIn } from './browser.mjs';
import { fill, startFleet } from './fleet.mjs';

const OUT = new URL('../../../../docs/images/web/', import.meta.url).pathname;
const WIDTHS = [1280, 390];
const only = process.argv[2]?.split(',');
/** Returns whether a view is among those that the arguments name. */
const wanted = (name) => !only || only.includes(name);

/** Writes a picture as WebP, which needs a third of the size of PNG. */
async function picture(page, name, fullPage) {
  if (process.env.PNG) return page.screenshot({ path: `${process.env.PNG}/${name}.png`, fullPage });
  const session = await page.context().newCDPSession(page);
  const { width, height } = await page.evaluate((full) => ({ width: innerWidth, height: full ? document.documentElement.scrollHeight : innerHeight }), fullPage);
  const options = { format: 'webp', quality: 80, captureBeyondViewport: fullPage, clip: { x: 0, y: 0, width, height, scale: 1 } };
  const { data } = await session.send('Page.captureScreenshot', options);
  return writeFile(`${OUT}${name}.webp`, Buffer.from(data, 'base64'));
}

await mkdir(OUT, { recursive: true });
const fleet = await startFleet();
const browser = await launch();
try {
  const ask = await fill(fleet);
  const nameOf = (deployment) => fleet.kubectl('get', 'mrep', '-l', `rooflet.dev/deployment=${deployment}`, '-o', 'jsonpath={.items[0].metadata.name}');
  const views = {
    fleet: '#/macs', mac: '#/macs/ultra-1', deployments: '#/deployments', deployment: '#/deployments/default/summaries',
    replica: `#/replicas/default/${nameOf('chat')}`, pending: `#/replicas/default/${nameOf('code')}`, playground: '#/playground',
    requests: '#/requests', plan: '#/plans/default/next-year', 'new-plan': '#/plans/new', claim: '#/claims/default/blog-77', events: '#/events', apply: '#/apply/deployment',
  };
  for (const colorScheme of ['light', 'dark']) {
    for (const width of WIDTHS) {
      const { page, context } = await openPage(browser, { colorScheme, viewport: { width, height: width < 500 ? 844 : 860 } });
      await page.goto(fleet.url);
      await page.getByLabel('bearer token').waitFor();
      if (wanted('sign-in')) await picture(page, `sign-in-${colorScheme}-${width}`, false);
      await signIn(page, fleet.url, fleet.token);
      for (const [name, hash] of Object.entries(views)) {
        if (!wanted(name)) continue;
        await page.goto(`${fleet.url}/${hash}`);
        await page.getByRole('heading').first().waitFor();
        if (name === 'playground') {
          await page.getByRole('combobox', { name: 'Model' }).selectOption('chat');
          await page.getByRole('spinbutton', { name: 'Max. tokens' }).fill('32');
          await page.getByRole('textbox', { name: 'Message' }).fill('Why is decoding limited by memory bandwidth?');
          await page.getByRole('button', { name: 'Send' }).click();
          await page.getByText('tok/s').waitFor();
          await page.getByRole('button', { name: 'Send' }).waitFor();
        }
        if (name === 'requests') {
          // The numbers of the last minute need readings before and after some requests.
          await page.locator('canvas').waitFor();
          await Promise.all(['chat', 'assistant', 'summaries', 'research'].flatMap((model) => [1, 2, 3, 4].map((index) => ask(model, index))));
          await page.getByRole('table', { name: 'Requests by key' }).getByText(/^[1-9][\d.,]* \/ 60,000/).waitFor({ state: 'attached' });
        }
        if (name === 'deployment') await page.waitForFunction(() => document.querySelectorAll('canvas').length === 2);
        // No row is highlighted.
        await page.mouse.move(0, 0);
        await page.waitForTimeout(900);
        const full = !['events', 'fleet', 'playground'].includes(name);
        await picture(page, `${name}-${colorScheme}-${width}`, full);
      }
      await context.close();
    }
  }
} finally {
  await browser.close();
  await fleet.stop();
}
