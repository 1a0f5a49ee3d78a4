// Walks every view and action of the page in a real browser, against the real server with simulated
// Macs. Fails on findings of axe-core, on errors in the console, and on requests to other hosts.
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { adversity } from './adversity.mjs';
import { launch, openPage, signIn } from './browser.mjs';
import { fill, startFleet, until } from './fleet.mjs';
import { numbers } from './numbers.mjs';
import { axe, failures, picture, step } from './steps.mjs';

const fleet = await startFleet();
const browser = await launch();
try {
  const ask = await fill(fleet);
  const { kubectl, url, token } = fleet;
  const first = (deployment) => kubectl('get', 'mrep', '-l', `rooflet.dev/deployment=${deployment}`, '-o', 'jsonpath={.items[0].metadata.name}');
  const views = {
    fleet: ['#/macs', 'Fleet'], mac: ['#/macs/ultra-1', 'ultra-1'], deployments: ['#/deployments', 'Deployments'],
    deployment: ['#/deployments/default/summaries', 'summaries'], replicas: ['#/replicas', 'Replicas'],
    replica: [`#/replicas/default/${first('chat')}`, first('chat')], pending: [`#/replicas/default/${first('code')}`, first('code')],
    playground: ['#/playground', 'Playground'], requests: ['#/requests', 'Requests'], plans: ['#/plans', 'Plans'],
    plan: ['#/plans/default/next-year', 'next-year'], newPlan: ['#/plans/new', 'New plan'], claims: ['#/claims', 'Claims'], claim: ['#/claims/default/blog-77', 'blog-77'],
    events: ['#/events', 'Events'], apply: ['#/apply/deployment', 'Apply YAML'],
  };
  const main = await openPage(browser, { viewport: { width: 1280, height: 860 } });
  const { page } = main;
  picture(page);
  const heading = (name) => page.getByRole('heading', { level: 1, name, exact: true });
  const open = async (name) => {
    await page.goto(`${url}/${views[name][0]}`);
    await heading(views[name][1]).waitFor();
  };

  /** Runs axe-core in a dialog, after its preview has been computed. */
  const settled = async (where) => {
    await page.waitForFunction(() => !document.body.innerText.includes('Computing the preview…'));
    await axe(page, where);
  };

  await step('a wrong token is rejected, and nothing is kept', async () => {
    await page.goto(url);
    await page.getByLabel('bearer token').fill('wrong');
    await page.getByRole('button', { name: 'Sign in' }).click();
    await page.getByRole('alert').waitFor();
    await axe(page, 'sign-in');
    await signIn(page, url, token);
    const stored = await page.evaluate(() => JSON.stringify([{ ...localStorage }, { ...sessionStorage }, document.cookie, location.href]));
    assert.ok(!stored.includes(token), 'the token is in the storage of the browser');
  });

  for (const width of [1280, 390]) {
    await step(`axe-core finds nothing: ${width} px`, async () => {
      await page.setViewportSize({ width, height: 860 });
      for (const name of Object.keys(views)) {
        await open(name);
        await page.waitForFunction(() => !document.querySelector('.skeleton') && !document.body.innerText.includes('Loading…'));
        await axe(page, `${name}, ${width} px`);
        const overflow = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
        assert.ok(overflow <= 0, `${name} is ${overflow} px wider than a window of ${width} px`);
      }
    });
  }
  await page.setViewportSize({ width: 1280, height: 860 });

  await numbers({ page, fleet, open, views, ask });

  await step('sort and filter', async () => {
    await open('fleet');
    await page.getByRole('button', { name: 'Mac', exact: true }).click();
    assert.match(await page.getByRole('row').nth(1).innerText(), /^ultra-1/);
    await page.getByRole('searchbox').fill('m4 pro');
    await until('four Macs remain', async () => (await page.getByRole('row').count()) === 5);
    await page.getByRole('searchbox').fill('no such mac');
    await page.getByText('No Mac matches').waitFor();
    await axe(page, 'table without a match');
  });

  await step('a pending replica shows reasons and the smallest change', async () => {
    await open('pending');
    await page.getByText('Smallest changes that admit it').waitFor();
    // The figure depends on the predictor.
    await page.getByText(/spec\.objectives\.decodeTokensPerSecond: \d/).first().waitFor();
  });

  await step('cordon and uncordon', async () => {
    await page.goto(`${url}/#/macs/mini-1`);
    await page.getByRole('button', { name: 'Cordon', exact: true }).click();
    await axe(page, 'dialog');
    await page.getByRole('dialog').getByRole('button', { name: 'Cordon', exact: true }).click();
    await page.getByText('Cordoned').first().waitFor();
    assert.equal(kubectl('get', 'mac/mini-1', '-o', 'jsonpath={.spec.unschedulable}'), 'true');
    await page.getByRole('button', { name: 'Uncordon' }).click();
    await page.getByRole('dialog').getByRole('button', { name: 'Uncordon' }).click();
    await until('uncordoned', () => kubectl('get', 'mac/mini-1', '-o', 'jsonpath={.spec.unschedulable}') !== 'true');
  });

  await step('drain moves the replicas as the preview shows', async () => {
    const placements = () => JSON.parse(kubectl('get', 'mrep', '-o', 'json')).items.filter((replica) => !replica.metadata.deletionTimestamp)
      .map((replica) => ({ name: `default/${replica.metadata.name}`, deployment: replica.metadata.labels['rooflet.dev/deployment'], node: replica.spec.nodeName }));
    const sorted = (of) => of.map(({ deployment, node }) => `${deployment} on ${node}`).sort();
    const target = kubectl('get', 'mrep', '-l', 'rooflet.dev/deployment=summaries', '-o', 'jsonpath={.items[*].spec.nodeName}').split(' ').find((node) => node.startsWith('pro'));
    await page.goto(`${url}/#/macs/${target}`);
    await page.getByRole('button', { name: 'Drain' }).click();
    const preview = page.getByRole('dialog').getByRole('list', { name: 'Preview' });
    await preview.waitFor();
    await axe(page, 'preview of a drain');
    const after = placements();
    const lines = (await preview.getByRole('listitem').allInnerTexts()).filter((line) => !line.startsWith('the rollout of default/summaries waits: '));
    for (const line of lines) {
      const [, name, to] = /^(\S+) moves from \S+ to (\S+)$/.exec(line) ?? assert.fail(line);
      after.find((replica) => replica.name === name).node = to;
    }
    assert.ok(after.every(({ node }) => node !== target));
    await page.getByRole('dialog').getByRole('button', { name: 'Drain' }).click();
    await page.getByText('No replica runs here').waitFor({ timeout: 60_000 });
    await until('the placements of the preview', () => JSON.stringify(sorted(placements())) === JSON.stringify(sorted(after)));
    await page.getByRole('button', { name: 'Uncordon' }).click();
    await page.getByRole('dialog').getByRole('button', { name: 'Uncordon' }).click();
  });

  await step('scale', async () => {
    await page.goto(`${url}/#/deployments/default/assistant`);
    await page.getByRole('button', { name: 'Scale' }).click();
    await page.getByRole('spinbutton', { name: 'Replicas' }).fill('3');
    await page.getByRole('dialog').getByText(/a new replica of default\/assistant \(revision 1\) starts on /).first().waitFor();
    await axe(page, 'dialog of a scaling');
    await page.getByRole('dialog').getByRole('button', { name: 'Scale' }).click();
    await page.getByText('3 of 3 ready').waitFor({ timeout: 90_000 });
    assert.equal(kubectl('get', 'mdep/assistant', '-o', 'jsonpath={.spec.replicas}'), '3');
  });

  await step('the figures of a canary analysis', async () => {
    // A busy machine makes one of the simulated workers slower, so the limits are wide.
    const analysisStep = { minRequests: 20, minTokensPerSecondPercent: 1, maxTimeToFirstTokenPercent: 10_000 };
    const strategy = { type: 'Canary', canary: { steps: [{ setWeight: 50 }, { analysis: analysisStep }] } };
    const spec = (contextTokens) => ({ replicas: 2, model: { source: 'local://qwen3-8b-4bit' }, serving: { contextTokens, maxConcurrency: 4 }, strategy });
    const apply = (contextTokens) => fleet.apply({ apiVersion: 'rooflet.dev/v1alpha1', kind: 'ModelDeployment', metadata: { name: 'review', namespace: 'default' }, spec: spec(contextTokens) });
    apply(4096);
    kubectl('wait', '--for=condition=Ready', 'mdep/review', '--timeout=120s');
    const status = (path) => kubectl('get', 'mdep/review', '-o', `jsonpath={.status.rollout.${path}}`);
    let asked = 0;
    const askMany = () => Promise.all(Array.from({ length: 8 }, () => ask('review', 1000 + asked++)));
    for (let round = 0; round < 6; round++) await askMany();
    apply(6144);
    await until('the canary serves', () => status('step') === '1');
    await page.goto(`${url}/#/deployments/default/review`);
    await heading('review').waitFor();
    const end = Date.now() + 120_000;
    while (status('analysis') === '' && Date.now() < end) await askMany();
    const analysis = status('analysis');
    // The figures are measured with these requests, and no request fails.
    assert.match(analysis, /^0\.0 % of requests failed, .* of the tokens\/s predicted .*, time to first token /);
    await page.getByText(analysis, { exact: true }).waitFor();
    await until('the canary has become stable', () => status('stableRevision') === status('revision'));
    await axe(page, 'deployment with an analysis');
    // A deletion shows what stops, what becomes free, and that nobody serves the model afterwards.
    await page.getByRole('button', { name: 'Delete' }).click();
    const preview = page.getByRole('dialog').getByRole('list', { name: 'Preview' });
    await preview.waitFor();
    await axe(page, 'preview of a deletion');
    const lines = await preview.getByRole('listitem').allInnerTexts();
    const [, ...names] = kubectl('get', 'mrep', '-l', 'rooflet.dev/deployment=review', '-o', 'jsonpath={range .items[*]} default/{.metadata.name} on {.spec.nodeName} stops{end}').split(' default/');
    assert.deepEqual(lines.slice(0, 2).sort(), names.map((name) => `default/${name}`).sort());
    assert.match(lines[2], /^frees [\d.]+ GiB of reserved memory on /);
    assert.equal(lines[3], 'no deployment serves the model name "review": gateways reject its requests with 404');
    await page.getByRole('dialog').getByRole('button', { name: 'Delete' }).click();
    await page.getByText('has no deployment review').waitFor();
    const answer = await fetch(`${fleet.gateway}/v1/chat/completions`, { method: 'POST', headers: { 'content-type': 'application/json' }, body: JSON.stringify({ model: 'review', messages: [{ role: 'user', content: 'x' }] }) });
    assert.equal(answer.status, 404);
  });

  await step('the document paints before the code of the page arrives', async () => {
    const { page: other, context } = await openPage(browser, {});
    let deliver;
    const delivered = new Promise((resolve) => { deliver = resolve; });
    await context.route('**/page.js', async (route) => {
      await delivered;
      await route.fallback();
    });
    await other.goto(url, { waitUntil: 'commit' });
    await other.waitForFunction(() => performance.getEntriesByName('first-contentful-paint').length === 1);
    await other.getByText('Connecting…').waitFor();
    assert.equal(await other.evaluate(() => getComputedStyle(document.querySelector('.frame')).display), 'grid', 'the styles do not apply');
    deliver();
    await other.getByLabel('bearer token').waitFor();
    await context.close();
  });

  await step('changes of a revision, promote, pause, resume, roll back', async () => {
    await open('deployment');
    await page.getByRole('button', { name: 'Changes since 1' }).click();
    await page.getByText('contextTokens: 6144').waitFor();
    // Any two revisions can be compared, also an old one with the newest.
    await page.getByRole('button', { name: 'Compare' }).click();
    await page.locator('.diff-line.removed', { hasText: 'contextTokens: 6144' }).waitFor();
    assert.deepEqual(await page.getByLabel('Compare with revision').locator('option').allInnerTexts(), ['2']);
    await page.getByRole('button', { name: 'Promote fully' }).click();
    await settled('dialog of a promotion');
    await page.getByRole('dialog').getByRole('button', { name: 'Promote fully' }).click();
    await until('rolled out', () => kubectl('get', 'mdep/summaries', '-o', 'jsonpath={.status.rollout.stableRevision}') === kubectl('get', 'mdep/summaries', '-o', 'jsonpath={.status.rollout.revision}'));
    await page.getByRole('button', { name: 'Pause' }).click();
    await settled('dialog of a pause');
    await page.getByRole('dialog').getByRole('button', { name: 'Pause' }).click();
    await page.getByRole('button', { name: 'Resume' }).click();
    await page.getByRole('dialog').getByRole('button', { name: 'Resume' }).click();
    await page.getByRole('button', { name: 'Roll back to 1' }).click();
    await settled('dialog of a rollback');
    await page.getByRole('dialog').getByRole('button', { name: 'Roll back' }).click();
    await until('the old template', () => kubectl('get', 'mdep/summaries', '-o', 'jsonpath={.spec.serving.contextTokens}') === '4096');
    await page.getByRole('button', { name: 'Abort' }).click();
    await settled('dialog of a abort');
    await page.getByRole('dialog').getByRole('button', { name: 'Abort' }).click();
    await page.getByText('Rolled back').first().waitFor();
  });

  await step('an action works although the object has just changed', async () => {
    await page.goto(`${url}/#/macs/mini-2`);
    await page.getByRole('button', { name: 'Cordon', exact: true }).click();
    kubectl('label', 'mac/mini-2', 'changed=meanwhile', '--overwrite');
    await page.getByRole('dialog').getByRole('button', { name: 'Cordon', exact: true }).click();
    await page.getByRole('button', { name: 'Uncordon' }).waitFor();
    assert.equal(kubectl('get', 'mac/mini-2', '-o', 'jsonpath={.metadata.labels.changed}'), 'meanwhile');
  });

  await step('apply: error, dry run with differences, apply', async () => {
    await page.goto(`${url}/#/apply`);
    const editor = page.getByRole('textbox');
    const check = page.getByRole('button', { name: 'Check with a dry run' });
    await editor.fill('apiVersion: rooflet.dev/v1alpha1\nkind: ModelDeployment\nmetadata: {name: typo}\nspec: {modle: {source: local://m}}\n');
    await check.click();
    await page.getByRole('alert').filter({ hasText: 'modle' }).waitFor();
    await axe(page, 'apply with an error');
    await editor.fill('apiVersion: rooflet.dev/v1alpha1\nkind: ModelDeployment\nmetadata: {name: small}\nspec: {replicas: 0, model: {source: local://qwen3-8b-4bit}}\n');
    await check.click();
    await page.getByText('source: local://qwen3-8b-4bit').waitFor();
    await axe(page, 'apply with differences');
    assert.throws(() => kubectl('get', 'mdep/small'), 'a dry run has created the object');
    await page.getByRole('button', { name: 'Apply 1 object' }).click();
    await page.getByText('Applied 1 object.').waitFor();
    kubectl('get', 'mdep/small');
    await page.goto(`${url}/#/deployments/default/small`);
    await page.getByRole('button', { name: 'Delete' }).click();
    await settled('dialog of a deletion');
    await page.getByRole('dialog').getByRole('button', { name: 'Delete' }).click();
    await page.getByText('has no deployment small').waitFor();
  });

  await step('what-if plan: other Macs, another model, an offer', async () => {
    await page.goto(`${url}/#/plans`);
    await page.getByRole('link', { name: 'New plan' }).click();
    await heading('New plan').waitFor();
    const group = (title, number) => page.getByRole('group', { name: `${title} ${number}`, exact: true });
    const fill = async (title, fields) => {
      for (const [label, value] of Object.entries(fields)) await group(title, 1).getByLabel(label, { exact: true }).fill(value);
    };
    const yaml = page.getByLabel('YAML');
    assert.ok(!(await yaml.innerText()).includes('macs:'), 'an unchanged fleet is the fleet of today');
    for (const title of ['Demand', 'Macs']) while (await group(title, 2).count()) await group(title, 2).getByRole('button', { name: 'Remove' }).click();
    await fill('Demand', { Model: 'qwen3-8b', Weights: 'mlx4', 'Requests/s': '0.05', 'Prompt tokens': '800', 'Answer tokens': '200' });
    const choose = async (title, chip, memory) => {
      await group(title, 1).getByLabel('Chip').selectOption(chip);
      await group(title, 1).getByLabel('Memory').selectOption(memory);
    };
    await fill('Macs', { Number: '2', Price: '599' });
    await choose('Macs', 'M4/10', '16Gi');
    await page.getByRole('button', { name: 'Add to Offers' }).click();
    await axe(page, 'new plan with an empty offer');
    await choose('Offers', 'M4 Max/40', '64Gi');
    // A chip has the memory sizes that are sold with it.
    assert.deepEqual(await group('Offers', 1).getByLabel('Memory').locator('option').allInnerTexts(), ['48 GiB', '64 GiB', '128 GiB']);
    await fill('Offers', { Price: 'many' });
    await page.getByRole('button', { name: 'Compute' }).click();
    assert.ok(await group('Offers', 1).getByLabel('Price').evaluate((input) => input.validity.patternMismatch));
    await fill('Offers', { Price: '2699' });
    assert.match(await yaml.innerText(), /count: 2\n/);
    await page.getByRole('button', { name: 'Compute' }).click();
    await page.getByRole('heading', { level: 1, name: /^what-if-/ }).waitFor();
    await page.getByRole('heading', { name: 'Loss of a Mac' }).waitFor();
    const created = JSON.parse(kubectl('get', `cplan/${await page.getByRole('heading', { level: 1 }).innerText()}`, '-o', 'json'));
    assert.deepEqual([created.spec.fleet.macs[0].count, created.spec.demand.length, created.spec.catalogue[0].price], [2, 1, 2699]);
    await page.getByText(created.status.verdict.summary).first().waitFor();
    // A rejected plan keeps the form.
    await page.goto(`${url}/#/plans/new`);
    await fill('Demand', { 'Requests/s': '2000000' });
    await page.getByRole('button', { name: 'Compute' }).click();
    await page.getByRole('alert').filter({ hasText: 'requestsPerSecond' }).waitFor();
    await axe(page, 'new plan with an error');
  });

  await step('claim: a number is checked', async () => {
    await open('claims');
    await page.getByLabel('Published number').fill('77.7');
    await page.getByLabel('Model', { exact: true }).fill('gemma-3-12b-it-4bit');
    await page.getByLabel('Chip', { exact: true }).fill('M4 Pro');
    await page.getByRole('button', { name: 'Check', exact: true }).click();
    await page.getByRole('heading', { level: 1, name: /^claim-/ }).waitFor();
    await page.getByText('at most').first().waitFor();
  });

  await step('playground: answer with figures and Mac', async () => {
    await open('playground');
    await page.getByRole('combobox', { name: 'Model' }).selectOption('chat');
    await page.getByLabel('Max. tokens').fill('8');
    await page.getByRole('textbox', { name: 'Message' }).fill('hello');
    await page.keyboard.press('Enter');
    const figures = page.locator('.answer-figures');
    await figures.getByText('tok/s').waitFor();
    await figures.getByRole('link').waitFor();
    await figures.getByText('→ 8').waitFor();
    await axe(page, 'playground with an answer');
  });

  await step('log of a replica', async () => {
    await open('replica');
    const log = page.getByLabel(/^Log of /);
    await log.filter({ hasText: 'worker ready' }).waitFor();
    assert.ok(!(await log.innerText()).includes('Loading…'));
    assert.deepEqual(await page.locator('main').getByRole('alert').allInnerTexts(), []);
  });

  await step('keyboard reaches the table and the actions', async () => {
    await open('fleet');
    await page.reload();
    await page.getByRole('row').nth(5).waitFor();
    await page.keyboard.press('Tab');
    assert.equal(await page.evaluate(() => document.activeElement.textContent), 'Skip to content');
    await page.keyboard.press('Enter');
    await page.keyboard.press('Tab');
    await page.keyboard.press('Tab');
    assert.ok(await page.evaluate(() => document.querySelector('main').contains(document.activeElement)));
  });

  await step('a viewer sees what the role permits, and no actions', async () => {
    kubectl('create', 'serviceaccount', 'viewer');
    kubectl('create', 'clusterrole', 'page-viewer', '--verb=get,list,watch', '--resource=modeldeployments.rooflet.dev,modelreplicas.rooflet.dev,events');
    kubectl('create', 'clusterrolebinding', 'page-viewer', '--clusterrole=page-viewer', '--serviceaccount=default:viewer');
    const viewer = await openPage(browser, { viewport: { width: 1280, height: 860 } });
    await signIn(viewer.page, url, kubectl('create', 'token', 'viewer').trim());
    await viewer.page.getByText('You may not list fleetnodes').waitFor();
    await axe(viewer.page, 'forbidden');
    const reviewed = ['patch', 'delete'].map((verb) => viewer.page.waitForResponse((response) => /selfsubjectaccessreviews/.test(response.url()) && response.request().postData().includes(`"${verb}"`)));
    await viewer.page.goto(`${url}/#/deployments/default/chat`);
    await viewer.page.getByRole('heading', { level: 1, name: 'chat' }).waitFor();
    await viewer.page.getByRole('row').nth(4).waitFor();
    await Promise.all(reviewed);
    assert.equal(await viewer.page.getByRole('button', { name: /^(Scale|Pause|Restart|Delete|Abort)/ }).count(), 0);
    await viewer.page.goto(`${url}/#/apply/deployment`);
    await viewer.page.getByRole('button', { name: 'Check with a dry run' }).click();
    await viewer.page.getByRole('alert').filter({ hasText: 'You may not do this' }).waitFor();
    assert.deepEqual(viewer.problems, []);
    await viewer.context.close();
  });

  await step('a link signs in once', async () => {
    const link = /http:\S+#code=\S+/.exec(execFileSync(fleet.binary, ['ui', `--kubeconfig=${fleet.kubeconfig}`], { encoding: 'utf8' }))[0];
    for (const heading of ['Fleet', 'Sign in to the fleet']) {
      const { page: other, context } = await openPage(browser, {});
      await other.goto(link);
      await other.getByRole('heading', { name: heading }).waitFor();
      assert.ok(!(await other.evaluate(() => location.href)).includes('code='), 'the code stays in the address');
      await context.close();
    }
  });

  await step('the files of a client certificate sign in, and other files do not', async () => {
    const { page: other, context } = await openPage(browser, {});
    await other.goto(url);
    const files = other.getByLabel('client certificate');
    const [certificate, key] = await fleet.clientCertificate();
    const file = (name, text) => ({ name, mimeType: 'application/x-pem-file', buffer: Buffer.from(text) });
    await files.setInputFiles([file('user.crt', certificate)]);
    await other.getByRole('alert').filter({ hasText: 'choose the file of the key' }).waitFor();
    await files.setInputFiles([file('user.crt', certificate), file('user.key', key)]);
    await other.getByRole('heading', { level: 1, name: 'Fleet' }).waitFor();
    await context.close();
  });

  await step('measured bandwidth of a Mac over time', async () => {
    // Simulated Macs measure nothing.
    const times = [0, 7, 14].map((day) => 1_795_000_000 + day * 86_400);
    const series = { measuredBytesPerSecond: [7.4e11, 7.1e11, 7.5e11], p10BytesPerSecond: [7.3e11, 6.2e11, 7.4e11], p90BytesPerSecond: [7.5e11, 7.4e11, 7.6e11] };
    await page.route('**/proxy/history/nodes/**', (route) => route.fulfill({ json: { times, series } }));
    await open('mac');
    await page.getByText('Bandwidth, GB/s').waitFor();
    await page.locator('.chart-key.measured').filter({ hasText: '750 GB/s' }).waitFor();
    await page.locator('canvas').first().waitFor();
    await axe(page, 'mac with measurements');
    await page.unroute('**/proxy/history/nodes/**');
  });

  await step('an ended session leads to the sign-in', async () => {
    await page.route('**/proxy/watch**', (route) => route.fulfill({ status: 401, contentType: 'application/json', body: '{"error":{"reason":"CredentialExpired","message":"expired"}}' }));
    await page.goto(`${url}/#/claims`);
    await page.getByRole('alert').filter({ hasText: 'The session has ended' }).waitFor();
    await page.unroute('**/proxy/watch**');
    // Only this answer was false: the session is still valid.
    await page.goto(url);
    await heading('Fleet').waitFor();
  });

  await step('the server restarts: data is shown as old, then live again', async () => {
    await open('fleet');
    await page.getByText('Live', { exact: true }).waitFor();
    const restarted = fleet.restart();
    await page.getByText(/^Disconnected/).waitFor({ timeout: 30_000 });
    assert.ok((await page.getByRole('row').count()) > 10, 'the rows have gone');
    await restarted;
    // Sessions are kept in memory only, so a restart of the page's server signs out.
    await Promise.race([page.getByLabel('bearer token').waitFor({ timeout: 60_000 }), page.getByText('Live', { exact: true }).waitFor({ timeout: 60_000 })]);
  });

  await adversity({ browser, fleet });

  await step('sign out', async () => {
    if (await page.getByLabel('bearer token').isVisible()) await signIn(page, url, token);
    await page.getByRole('button', { name: 'Sign out' }).click();
    await page.getByLabel('bearer token').waitFor();
    assert.equal((await page.request.get(`${url}/session`)).status(), 401);
  });

  await step('no errors, and no request to another host', async () => {
    assert.deepEqual(main.problems, []);
    assert.deepEqual([...main.hosts], [new URL(url).host]);
  });
} finally {
  await browser.close();
  await fleet.stop();
}
process.exit(failures() > 0 ? 1 : 0);
