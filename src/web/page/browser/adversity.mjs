// Bad luck: restarts, expired versions and tokens, two tabs, a proxy that holds responses back, many
// events, foreign markup, wrong clocks.
import assert from 'node:assert/strict';
import { Agent, createServer, request } from 'node:http';
import { openPage, signIn } from './browser.mjs';
import { until } from './fleet.mjs';
import { axe, step } from './steps.mjs';

const MARKUP = '<img src=x onerror="document.title=1"><script>document.title=1</script>';
const EVENTS_PER_MINUTE = 10_000;
const EVENT_SECONDS = 12;
const HOUR_MS = 3_600_000;

export async function adversity({ browser, fleet }) {
  const { kubectl, token } = fleet;
  const url = await fleet.separateWeb();
  const cordon = (mac, unschedulable) => kubectl('patch', 'mac', mac, '--type=merge', '-p', JSON.stringify({ spec: { unschedulable } }));
  const live = (page) => page.getByText('Live', { exact: true }).waitFor({ timeout: 60_000 });
  /** Signs in with an own session, runs the function, and asserts that the page logged no error. */
  const withPage = async (options, run, { address = url, credential = token } = {}) => {
    const opened = await openPage(browser, { viewport: { width: 1280, height: 860 }, ...options });
    try {
      if (options.init) await opened.context.addInitScript(options.init.script, options.init.value);
      await signIn(opened.page, address, credential);
      await run(opened.page, opened.context);
      assert.deepEqual(opened.problems, []);
    } finally {
      await opened.context.close();
    }
  };

  await step('the API server restarts: stale data is marked, and the session continues', () => withPage({}, async (page) => {
    await live(page);
    const restarted = fleet.restart();
    await page.getByText(/^Disconnected: data is \d+s old/).waitFor({ timeout: 30_000 });
    assert.ok((await page.getByRole('row').count()) > 10, 'the rows have gone');
    await axe(page, 'stale data');
    await restarted;
    await live(page);
    cordon('mini-3', true);
    await page.getByRole('row').filter({ has: page.getByRole('link', { name: 'mini-3' }) }).getByText('Cordoned').waitFor();
    cordon('mini-3', false);
  }));

  await step('the API server is restored from a backup: watches end with 410, and the page lists again', () => withPage({}, async (page) => {
    await live(page);
    const row = page.getByRole('row').filter({ has: page.getByRole('link', { name: 'mini-5' }) });
    const restore = await fleet.backup('backup');
    // The backup does not have this change.
    cordon('mini-5', true);
    await row.getByText('Cordoned').waitFor();
    const version = kubectl('get', 'mac', 'mini-5', '-o', 'jsonpath={.metadata.resourceVersion}');
    await restore();
    await row.getByText('Ready', { exact: true }).waitFor({ timeout: 60_000 });
    await live(page);
    const line = await page.evaluate(async (path) => {
      const response = await fetch(`/proxy/watch?path=${encodeURIComponent(path)}`);
      return (await response.text()).split('\n').find((text) => text.includes('410'));
    }, `/apis/rooflet.dev/v1alpha1/fleetnodes?resourceVersion=${version}`);
    const { event } = JSON.parse(line);
    assert.deepEqual([event.type, event.object.code, event.object.reason], ['ERROR', 410, 'Expired']);
    // The new watch delivers changes.
    cordon('mini-5', true);
    await row.getByText('Cordoned').waitFor();
    cordon('mini-5', false);
  }));

  await step('a token that has become invalid leads to the sign-in', async () => {
    kubectl('create', 'serviceaccount', 'temporary');
    kubectl('create', 'clusterrolebinding', 'temporary', '--clusterrole=view', '--serviceaccount=default:temporary');
    const credential = kubectl('create', 'token', 'temporary').trim();
    await withPage({}, async (page) => {
      kubectl('delete', 'serviceaccount', 'temporary');
      // The next request shows that the token is not valid. A repeated list may be faster than this click.
      await page.getByRole('link', { name: 'Events' }).click({ timeout: 3000 }).catch(() => {});
      await page.getByRole('alert').filter({ hasText: 'The session has ended' }).waitFor({ timeout: 30_000 });
      assert.equal(await page.getByRole('row').count(), 0, 'objects are still shown');
    }, { credential });
  });

  await step('two tabs act at once', () => withPage({}, async (first, context) => {
    const second = await context.newPage();
    const tabs = [first, second];
    const both = (run) => Promise.all(tabs.map(run));
    const press = async (tab, name, confirm) => {
      await tab.getByRole('button', { name, exact: true }).click();
      await tab.getByRole('dialog').getByRole('button', { name: confirm ?? name, exact: true }).waitFor();
    };
    const confirm = (tab, name) => tab.getByRole('dialog').getByRole('button', { name, exact: true }).click({ timeout: 5000 });
    await both((tab) => tab.goto(`${url}/#/deployments/default/chat`));
    await both((tab) => press(tab, 'Pause'));
    await both((tab) => confirm(tab, 'Pause'));
    // The slower tab succeeds too, or reports that the rollout is paused.
    await both((tab) => until('an answer', async () => (await tab.getByRole('dialog').count()) === 0 || tab.getByText('rollouts are paused already').isVisible()));
    assert.equal(kubectl('get', 'mdep/chat', '-o', 'jsonpath={.spec.paused}'), 'true');
    for (const tab of tabs) if (await tab.getByRole('dialog').count()) await tab.getByRole('button', { name: 'Cancel' }).click();
    await both((tab) => tab.getByRole('button', { name: 'Resume', exact: true }).waitFor());
    await press(first, 'Resume');
    await confirm(first, 'Resume');
    await second.getByRole('button', { name: 'Pause', exact: true }).waitFor();

    await both((tab) => press(tab, 'Scale'));
    await both((tab) => tab.getByRole('spinbutton', { name: 'Replicas' }).fill(String(2 + tabs.indexOf(tab))));
    await both((tab) => confirm(tab, 'Scale'));
    await both((tab) => until('the dialog closes', async () => (await tab.getByRole('dialog').count()) === 0));
    const wanted = kubectl('get', 'mdep/chat', '-o', 'jsonpath={.spec.replicas}');
    assert.match(wanted, /^[23]$/);
    await both((tab) => tab.getByText(`of ${wanted} ready`).waitFor());

    fleet.apply({ apiVersion: 'rooflet.dev/v1alpha1', kind: 'ModelDeployment', metadata: { name: 'twice', namespace: 'default' }, spec: { replicas: 0, model: { source: 'local://qwen3-8b-4bit' } } });
    await both((tab) => tab.goto(`${url}/#/deployments/default/twice`));
    await both((tab) => press(tab, 'Delete'));
    // The dialog of the slower tab closes when the deployment is gone.
    await both((tab) => confirm(tab, 'Delete').catch(() => {}));
    await both((tab) => tab.getByText('has no deployment twice').waitFor());
    await both((tab) => until('the dialog closes', async () => (await tab.getByRole('dialog').count()) === 0));

    await second.getByRole('button', { name: 'Sign out' }).click();
    await first.getByRole('alert').filter({ hasText: 'The session has ended' }).waitFor({ timeout: 30_000 });
  }));

  await step('a proxy that holds responses back: the page lists again and again', async () => {
    const proxy = await bufferingProxy(url);
    try {
      await withPage({}, async (page) => {
        await page.getByText('Every 10 s', { exact: true }).waitFor({ timeout: 30_000 });
        cordon('mini-4', true);
        await page.getByRole('row').filter({ has: page.getByRole('link', { name: 'mini-4' }) }).getByText('Cordoned').waitFor({ timeout: 30_000 });
        cordon('mini-4', false);
        // A view with another kind does not end the lists.
        await page.getByRole('link', { name: 'Plans' }).click();
        await page.getByRole('link', { name: 'next-year' }).waitFor();
        await page.getByText('Every 10 s', { exact: true }).waitFor();
      }, { address: proxy.address });
    } finally {
      proxy.stop();
    }
  });

  await step('markup in names and messages stays text', async () => {
    const now = new Date().toISOString().replace(/\.\d+Z$/, 'Z');
    fleet.apply({
      apiVersion: 'v1', kind: 'Event', metadata: { name: 'markup', namespace: 'default' }, type: 'Warning', reason: 'Markup', message: MARKUP,
      firstTimestamp: now, lastTimestamp: now, count: 1, involvedObject: { apiVersion: 'rooflet.dev/v1alpha1', kind: 'FleetNode', name: 'mini-1' },
    });
    fleet.apply({ apiVersion: 'rooflet.dev/v1alpha1', kind: 'FleetNode', metadata: { name: 'markup' }, spec: {} });
    // A model has the name of its directory on the Mac.
    const cost = JSON.parse(kubectl('get', 'mac', 'mini-1', '-o', 'jsonpath={.status.models[0]}'));
    const status = { chip: { name: MARKUP, gpuCores: 10 }, dataSheet: { memoryBytesPerSecond: 120e9, source: MARKUP }, models: [{ ...cost, name: MARKUP }] };
    kubectl('patch', 'mac', 'markup', '--subresource=status', '--type=merge', '-p', JSON.stringify({ status }));
    await withPage({}, async (page) => {
      const isText = async (view) => {
        await page.getByText('<img src=x').filter({ visible: true }).first().waitFor();
        assert.equal(await page.locator('main img, main script').count(), 0, `${view} has an element of the markup`);
        assert.notEqual(await page.title(), '1', `${view} has run the markup`);
      };
      await isText('fleet');
      await page.goto(`${url}/#/macs/markup`);
      await page.locator('svg').filter({ hasText: '<img' }).first().waitFor();
      await isText('mac');
      await page.goto(`${url}/#/events`);
      await isText('events');
      await page.route('**/proxy/openai/v1/models', (route) => route.fulfill({ contentType: 'application/json', body: JSON.stringify({ data: [{ id: MARKUP, max_model_len: 1024 }] }) }));
      const chunk = { choices: [{ delta: { content: MARKUP, reasoning_content: MARKUP }, finish_reason: 'stop' }] };
      await page.route('**/proxy/openai/v1/chat/completions', (route) => route.fulfill({ contentType: 'text/event-stream', headers: { 'x-rooflet-replica': MARKUP }, body: `data: ${JSON.stringify(chunk)}\n\ndata: [DONE]\n\n` }));
      await page.goto(`${url}/#/playground`);
      await page.getByRole('textbox', { name: 'Message' }).fill(MARKUP);
      await page.getByRole('button', { name: 'Send' }).click();
      await page.locator('.message.assistant .message-text').filter({ hasText: '<img' }).waitFor();
      await isText('playground');
    });
    kubectl('delete', 'mac', 'markup');
  });

  for (const [name, offset, word] of [['ahead', HOUR_MS, 'ahead of'], ['behind', -HOUR_MS, 'behind']]) {
    await step(`the clock of the browser is an hour ${name}: ages are those of the server`, () => withPage({ init: { script: shiftClock, value: offset } }, async (page) => {
      await page.getByRole('status').filter({ hasText: `60m ${word} the server's clock` }).waitFor();
      await axe(page, 'a view with a notice');
      const created = Date.parse(kubectl('get', 'mac', 'mini-1', '-o', 'jsonpath={.metadata.creationTimestamp}'));
      const row = page.getByRole('row').filter({ has: page.getByRole('link', { name: 'mini-1' }) });
      const [, minutes = '0', seconds = '0'] = /^(?:(\d+)m)?(?:(\d+)s)?$/.exec(await row.locator('time').innerText()) ?? assert.fail('no age');
      const elapsed = (Date.now() - created) / 1000;
      assert.ok(Math.abs(Number(minutes) * 60 + Number(seconds) - elapsed) < 65, `${minutes} min ${seconds} s, but the Mac is ${elapsed} s old`);
    }));
  }

  await step(`${EVENTS_PER_MINUTE.toLocaleString('en-US')} events per minute`, () => withPage({}, async (page, context) => {
    await page.goto(`${url}/#/events`);
    await page.getByRole('row').nth(3).waitFor();
    const session = await page.evaluate(async () => (await fetch('/session')).json());
    const cookie = (await context.cookies()).map(({ name, value }) => `${name}=${value}`).join('; ');
    const begun = Date.now();
    const sent = await sendEvents(url, { cookie, origin: url, 'x-csrf-token': session.csrfToken, 'content-type': 'application/json' }, async () => {
      // The page answers while events arrive.
      await page.getByRole('searchbox').fill('flood-1');
      await page.getByRole('searchbox').fill('');
    });
    const seconds = (Date.now() - begun) / 1000;
    console.log(`     ${sent} events in ${seconds.toFixed(1)} s`);
    assert.equal(sent, Math.floor((EVENTS_PER_MINUTE * EVENT_SECONDS) / 60));
    await until('the page has all events', async () => {
      const [, shown] = /All ([\d,]+)/.exec(await page.getByRole('group', { name: 'Type' }).innerText());
      return Number(shown.replaceAll(',', '')) === kubectl('get', 'events', '-A', '-o', 'name').trim().split('\n').length;
    }, 30_000);
    assert.ok((await page.getByRole('row').count()) < 120, 'rows outside the window are rendered');
    await page.getByRole('searchbox').fill(`number ${sent - 1} of a flood`);
    await page.getByText(`number ${sent - 1} of a flood`).filter({ visible: true }).first().waitFor();
    await live(page);
  }));
}

/** Adds an offset in milliseconds to the clock of a page. */
function shiftClock(offset) {
  const Real = Date;
  globalThis.Date = class extends Real {
    constructor(...of) {
      if (of.length === 0) super(Real.now() + offset);
      else super(...of);
    }

    static now() {
      return Real.now() + offset;
    }
  };
}

/** Starts a proxy that forwards a response only after its end. */
async function bufferingProxy(target) {
  const { hostname, port } = new URL(target);
  const server = createServer((incoming, outgoing) => {
    const upstream = request({ hostname, port, path: incoming.url, method: incoming.method, headers: incoming.headers }, (response) => {
      const chunks = [];
      response.on('data', (chunk) => chunks.push(chunk));
      response.on('end', () => {
        outgoing.writeHead(response.statusCode, response.headers);
        outgoing.end(Buffer.concat(chunks));
      });
    });
    upstream.on('error', () => outgoing.destroy());
    outgoing.on('close', () => upstream.destroy());
    incoming.pipe(upstream);
  });
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
  return {
    address: `http://127.0.0.1:${server.address().port}`,
    stop: () => {
      server.closeAllConnections();
      server.close();
    },
  };
}

/** Creates events at the rate, and calls `during` once per second. Returns the number of created events. */
async function sendEvents(target, headers, during) {
  const agent = new Agent({ keepAlive: true, maxSockets: 8 });
  const all = Math.floor((EVENTS_PER_MINUTE * EVENT_SECONDS) / 60);
  const post = (index) => new Promise((resolve, reject) => {
    const at = new Date().toISOString().replace(/\.\d+Z$/, 'Z');
    const body = JSON.stringify({
      apiVersion: 'v1', kind: 'Event', metadata: { name: `flood-${index}`, namespace: 'default' }, type: 'Normal', reason: 'Flood', message: `number ${index} of a flood`,
      firstTimestamp: at, lastTimestamp: at, count: 1, involvedObject: { apiVersion: 'rooflet.dev/v1alpha1', kind: 'FleetNode', name: 'mini-1' },
    });
    const outgoing = request(`${target}/proxy/api/api/v1/namespaces/default/events`, { method: 'POST', agent, headers: { ...headers, 'content-length': Buffer.byteLength(body) } }, (response) => {
      response.resume();
      response.on('end', () => (response.statusCode === 201 ? resolve() : reject(new Error(`event ${index}: status ${response.statusCode}`))));
    });
    outgoing.on('error', reject);
    outgoing.end(body);
  });
  const begun = Date.now();
  const pending = [];
  let watched = Promise.resolve();
  let lastWatched = begun;
  for (let index = 0; index < all;) {
    const due = Math.min(all, Math.floor(((Date.now() - begun) / 60_000) * EVENTS_PER_MINUTE));
    while (index < due) pending.push(post(index++));
    if (Date.now() - lastWatched > 1000) {
      lastWatched = Date.now();
      watched = watched.then(during);
    }
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
  await Promise.all([...pending, watched]);
  agent.destroy();
  return pending.length;
}
