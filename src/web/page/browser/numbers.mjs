// The page's numbers are those of kubectl and of /metrics.
import assert from 'node:assert/strict';
import { until } from './fleet.mjs';
import { bytesOf, durationOf, figures, metrics, shows, showsTime, table } from './reading.mjs';
import { axe, step } from './steps.mjs';

const GIB = 2 ** 30;

/** Compares until the page and the answers of kubectl are of the same time. */
function settles(compare) {
  return until('the page has the same numbers', async () => {
    await compare();
    return true;
  }, 20_000);
}

export async function numbers({ page, fleet, open, views, ask }) {
  const { kubectl } = fleet;
  const list = (...of) => JSON.parse(kubectl('get', ...of, '-o', 'json')).items;
  const object = (...of) => JSON.parse(kubectl('get', ...of, '-o', 'json'));
  const ofFleet = () => metrics(kubectl('get', '--raw', '/metrics'));
  const ofGateway = async () => metrics(await (await fetch(`${fleet.gateway}/metrics`)).text());
  const sum = (of, value) => of.reduce((total, entry) => total + (value(entry) ?? 0), 0);
  const runs = (replica) => !['Succeeded', 'Failed'].includes(replica.status?.phase);
  const reserved = (of) => sum(of.filter(runs), (replica) => bytesOf(replica.status?.reservedMemory));
  const share = (of) => sum(of.filter(runs), (replica) => (replica.status?.admission?.admitted ? replica.status.admission.chipTimePercent : 0));
  const ready = (of) => of.filter((replica) => replica.status?.phase === 'Ready').length;
  const pair = (text) => (text ?? '').split('/').map((part) => (part === '-' || part === '' ? undefined : (durationOf(part) ?? Number(part))));
  const row = (rows, column, name) => rows.find((cells) => cells[column].split(/\s/)[0] === name) ?? assert.fail(`no row ${name}`);

  await step('numbers of the Macs: kubectl and the metrics of the control plane', async () => {
    await open('fleet');
    await settles(async () => {
      const [macs, replicas, fleetMetrics] = [list('mac'), list('mrep', '-A'), ofFleet()];
      const rows = await table(page, 'Macs');
      assert.equal(rows.length, macs.length);
      for (const { metadata: { name }, status } of macs) {
        const cells = row(rows, 'Mac', name);
        const own = replicas.filter((replica) => replica.spec.nodeName === name);
        const limit = bytesOf(status.allocatable.memory);
        shows(`${name}: reserved memory`, cells.Memory, 0, reserved(own) / GIB);
        shows(`${name}: memory for models`, cells.Memory, 1, limit / GIB);
        assert.equal(fleetMetrics.one('rooflet_node_memory_bytes', { node: name, kind: 'allocatable' }), limit);
        // The metric is rounded as in the table of kubectl.
        const free = fleetMetrics.one('rooflet_node_memory_bytes', { node: name, kind: 'free' });
        assert.ok(Math.abs(limit - reserved(own) - free) <= 0.06 * GIB, `${name}: ${limit} - ${reserved(own)} is not ${free}`);
        shows(`${name}: reserved bandwidth`, cells.Bandwidth, 0, share(own));
        assert.match(cells.Measured, /^–/, 'a simulated Mac has no measured bandwidth');
        shows(`${name}: bandwidth of the data sheet`, cells.Measured, 0, status.dataSheet.memoryBytesPerSecond / 1e9);
        assert.equal(fleetMetrics.one('rooflet_node_bandwidth_bytes_per_second', { node: name, kind: 'nominal' }), status.dataSheet.memoryBytesPerSecond);
        shows(`${name}: ready replicas`, cells.Replicas, 0, fleetMetrics.sum('rooflet_replica_phase', { node: name, phase: 'Ready' }));
        shows(`${name}: replicas`, cells.Replicas, 1, own.length);
        shows(`${name}: requests`, cells.Requests, 0, sum(own, (replica) => replica.status?.requests?.running));
      }
      const summary = await figures(page);
      const placed = replicas.filter((replica) => replica.spec.nodeName);
      shows('ready Macs', summary['Macs ready'], 0, fleetMetrics.sum('rooflet_node_condition', { condition: 'Ready', status: 'True' }));
      shows('Macs', summary['Macs ready'], 1, macs.length);
      shows('reserved memory', summary['Memory reserved'], 0, reserved(placed) / GIB);
      shows('memory for models', summary['Memory reserved'], 1, sum(macs, (mac) => bytesOf(mac.status.allocatable.memory)) / GIB);
      shows('reserved bandwidth', summary['Bandwidth reserved'], 0, sum(macs, (mac) => (mac.status.dataSheet.memoryBytesPerSecond * share(placed.filter((replica) => replica.spec.nodeName === mac.metadata.name))) / 100) / 1e9);
      shows('ready replicas', summary['Replicas ready'], 0, ready(placed));
      shows('placed replicas', summary['Replicas ready'], 1, placed.length);
    });
  });

  await step('numbers of a Mac', async () => {
    await open('mac');
    await settles(async () => {
      const mac = object('mac', 'ultra-1');
      const own = list('mrep', '-A').filter((replica) => replica.spec.nodeName === 'ultra-1');
      const use = await figures(page, 'Use');
      shows('allocatable memory', use['Allocatable memory'], 0, bytesOf(mac.status.allocatable.memory) / GIB);
      shows('memory', use['Allocatable memory'], 1, bytesOf(mac.status.capacity.memory) / GIB);
      const bars = await page.locator('.use').allInnerTexts();
      shows('reserved memory', bars[0], 0, reserved(own) / GIB);
      shows('loaded memory', bars[0], 2, sum(own.filter(runs), (replica) => replica.status?.model?.weightsBytes) / GIB);
      shows('reserved bandwidth', bars[1], 0, share(own));
      assert.equal((await table(page, 'Replicas on ultra-1')).length, own.length);
    });
  });

  await step('numbers of the deployments: kubectl and the metrics of the control plane', async () => {
    await open('deployments');
    await settles(async () => {
      const [deployments, fleetMetrics] = [list('mdep', '-A'), ofFleet()];
      const rows = await table(page, 'Deployments');
      assert.equal(rows.length, deployments.length);
      for (const { metadata: { name }, spec, status } of deployments) {
        const cells = row(rows, 'Deployment', name);
        const metric = (of, labels) => fleetMetrics.one(`rooflet_deployment_${of}`, { deployment: name, ...labels });
        shows(`${name}: ready`, cells.Ready, 0, metric('replicas', { state: 'ready' }));
        shows(`${name}: desired`, cells.Ready, 1, metric('replicas', { state: 'desired' }));
        const [predicted, measured] = pair(status.tokensPerSecond);
        const at = measured === undefined ? 0 : 1;
        if (measured !== undefined) shows(`${name}: measured speed`, cells['Tokens/s'], 0, measured);
        if (predicted !== undefined) shows(`${name}: predicted speed`, cells['Tokens/s'], at, predicted);
        const [firstPredicted, firstMeasured] = pair(status.timeToFirstToken);
        if (firstMeasured !== undefined) showsTime(`${name}: measured TTFT`, cells.TTFT, 0, firstMeasured);
        if (firstPredicted !== undefined) showsTime(`${name}: predicted TTFT`, cells.TTFT, firstMeasured === undefined ? 0 : 1, firstPredicted);
        if (spec.objectives?.decodeTokensPerSecond) assert.equal(metric('objective_tokens_per_second', {}), spec.objectives.decodeTokensPerSecond);
        shows(`${name}: throughput`, cells.Throughput, 0, metric('throughput_tokens_per_second', { kind: 'predicted' }));
      }
    });
  });

  await step('numbers of a deployment with a throughput floor', async () => {
    await page.goto(`${fleet.url}/#/deployments/default/chat`);
    await page.getByRole('heading', { level: 1, name: 'chat' }).waitFor();
    await settles(async () => {
      const [{ status }, fleetMetrics] = [object('mdep', 'chat'), ofFleet()];
      const speed = await figures(page, 'Speed');
      const [predicted, measured] = pair(status.tokensPerSecond);
      shows('measured speed', speed.Measured, 0, measured);
      shows('predicted speed', speed.Predicted, 0, predicted);
      const metric = (kind) => fleetMetrics.one('rooflet_deployment_throughput_tokens_per_second', { deployment: 'chat', kind });
      const course = (await page.locator('.throughput').innerText()).split('Floor:');
      shows('throughput', course[0], 0, metric('predicted'));
      shows('throughput floor', course[1], 1, metric('floor'));
    });
  });

  await step('the history of a deployment has values of kubectl, from before the page was opened', async () => {
    const read = () => page.evaluate(async () => (await fetch('/proxy/history/deployments/default/chat')).json());
    await until('a value of the history', async () => {
      const [history, { status }] = [await read(), object('mdep', 'chat')];
      const [predicted, measured] = pair(status.tokensPerSecond);
      const last = (name) => history.series[name].findLast((value) => value !== null);
      assert.equal(last('readyReplicas'), status.readyReplicas);
      assert.ok(Math.abs(last('measuredTokensPerSecond') - measured) < 0.01, `${last('measuredTokensPerSecond')} is not ${measured}`);
      assert.ok(Math.abs(last('predictedTokensPerSecond') - predicted) < 0.01, `${last('predictedTokensPerSecond')} is not ${predicted}`);
      return true;
    });
    // The first request for the history fills the charts, which otherwise begin with this page.
    await page.goto(`${fleet.url}/#/deployments/default/chat`);
    const answered = page.waitForResponse(/\/proxy\/history\/deployments\/default\/chat/);
    await page.reload();
    assert.equal((await answered).status(), 200);
  });

  await step('numbers of the replicas: kubectl and the metrics of the control plane', async () => {
    await open('replicas');
    await settles(async () => {
      const [replicas, fleetMetrics] = [list('mrep', '-A'), ofFleet()];
      const rows = await table(page, 'Replicas');
      assert.equal(rows.length, replicas.length);
      for (const { metadata: { name }, spec, status } of replicas) {
        const cells = row(rows, 'Replica', name);
        assert.equal(cells.Mac, spec.nodeName ?? '–');
        if (status?.reservedMemory) shows(`${name}: memory`, cells.Memory, 0, bytesOf(status.reservedMemory) / GIB);
        if (status?.requests) shows(`${name}: completed requests`, cells.Requests, 1, status.requests.completed);
        // The metrics have no speed of replicas that are idle for 5 minutes.
        if (!status?.measured || Date.now() - Date.parse(status.requests?.idleSince) > 240_000) continue;
        const metric = (of, kind) => fleetMetrics.one(`rooflet_replica_${of}`, { replica: name, kind });
        shows(`${name}: measured speed`, cells['Tokens/s'], 0, metric('tokens_per_second', 'measured'));
        if (status.measured.predicted) shows(`${name}: predicted speed`, cells['Tokens/s'], 1, metric('tokens_per_second', 'predicted'));
        showsTime(`${name}: measured TTFT`, cells.TTFT, 0, metric('time_to_first_token_seconds', 'measured'));
      }
    });
  });

  await step('numbers of an admission', async () => {
    await open('replica');
    await settles(async () => {
      const { status: { admission } } = object('mrep', views.replica[1]);
      const { memory, context, speed } = admission;
      const terms = Object.fromEntries(await page.evaluate(() => [...document.querySelectorAll('.working tr')].map((line) => [line.cells[0].childNodes[line.cells[0].querySelector('i') ? 1 : 0].textContent.trim(), line.cells[1].innerText])));
      // Each text has its own unit.
      const size = (text) => Number(text.split(' ')[0]) * { KiB: 2 ** 10, MiB: 2 ** 20, GiB: GIB }[text.split(' ')[1]];
      const is = (label, expected) => assert.ok(Math.abs(size(terms[label]) - expected) <= 0.051 * (expected >= GIB ? GIB : 2 ** 20), `${label}: ${terms[label]} is not ${expected}`);
      is('Weights', memory.weightsBytes);
      is('KV cache', memory.kvBytes);
      is('Activations', memory.activationBytes);
      is('Runtime', memory.runtimeBytes);
      is('Reserved', memory.weightsBytes + memory.kvBytes + memory.activationBytes + memory.runtimeBytes);
      is('Free for it', memory.freeBytes);
      const facts = await figures(page, 'Admission');
      shows('asked context', facts.Context, 0, context.askedTokens);
      shows('context of the model', facts.Context, 2, context.modelTokens);
      shows('reserved bandwidth', facts.Bandwidth, 0, admission.chipTimePercent);
      ['p50', 'p10', 'p90'].forEach((part, index) => shows(`speed ${part}`, facts['Speed at full load'], index, speed.tokensPerSecond[part]));
      shows('bytes per token', facts['Read per token'], 0, speed.bytesPerToken / 1e9);
      showsTime('TTFT', facts['First token'], 0, speed.timeToFirstTokenSeconds.p50);
    });
  });

  await step('numbers of the requests: the metrics of the gateway, and kubectl', async () => {
    await open('requests');
    await page.getByRole('table', { name: 'Times' }).waitFor();
    await settles(async () => {
      const gateway = await ofGateway();
      const summary = await figures(page);
      const total = (name) => gateway.sum(`rooflet_gateway_${name}`);
      shows('requests in progress', summary['In progress'], 0, total('outstanding_requests'));
      shows('queued requests', summary.Queued, 0, total('queued_requests'));
      shows('finished requests', summary.Finished, 0, total('requests_total'));
      shows('retries', summary.Retries, 0, total('retries_total'));
      shows('hedges', summary.Retries, 1, total('hedges_total'));
      shows('fallbacks', summary.Retries, 2, total('fallbacks_total'));
      const times = (await page.evaluate(() => [...document.querySelectorAll('table[aria-label="Times"] tbody tr')].map((line) => [...line.cells].map((cell) => cell.innerText))));
      const names = { 'To first token': 'time_to_first_byte_seconds', 'Whole request': 'request_seconds', 'In the queue': 'queue_seconds' };
      assert.deepEqual(times.map(([label]) => label), Object.keys(names));
      for (const [label, ...cells] of times) {
        [0.5, 0.95, 0.99].forEach((share, index) => showsTime(`${label}, quantile ${share}`, cells[index], 0, gateway.quantile(share, `rooflet_gateway_${names[label]}`)));
      }
      const replicas = list('mrep', '-A');
      for (const cells of await table(page, 'Requests by model')) {
        const own = replicas.filter((replica) => replica.metadata.labels?.['rooflet.dev/deployment'] === cells.Deployment);
        shows(`${cells.Deployment}: completed`, cells.Completed, 0, sum(own, (replica) => replica.status?.requests?.completed));
        shows(`${cells.Deployment}: failed`, cells.Failed, 0, sum(own, (replica) => replica.status?.requests?.failed));
      }
      for (const { metadata: { name }, spec, status } of list('akey', '-A')) {
        const cells = row(await table(page, 'Requests by key'), 'Key', name);
        shows(`${name}: requests today`, cells['Requests today'], 0, status?.requestsToday);
        shows(`${name}: tokens today`, cells['Tokens today'], 0, status?.tokensToday);
        shows(`${name}: tokens per minute`, cells['Tokens/min'].split('/').at(-1), 0, spec.tokensPerMinute);
        assert.equal(gateway.sum('rooflet_gateway_key_requests_total', { key: name }), status?.requestsToday, `${name}: metrics and status`);
        assert.equal(gateway.sum('rooflet_gateway_key_tokens_total', { key: name }), status?.tokensToday, `${name}: metrics and status`);
      }
    });
  });

  await step('errors by reason: the metrics of the gateway', async () => {
    const answer = await fetch(`${fleet.gateway}/v1/models`, { headers: { authorization: 'Bearer sk-rf-wrong' } });
    assert.equal(answer.status, 401);
    await open('requests');
    await settles(async () => {
      const gateway = await ofGateway();
      const counted = [...gateway.all('rooflet_gateway_requests_total').filter(({ labels }) => labels.code !== '2xx'), ...gateway.all('rooflet_gateway_refusals_total'), ...gateway.all('rooflet_gateway_key_denials_total')].filter(({ value }) => value > 0);
      assert.ok(counted.length > 0, 'no error is counted');
      const errors = await figures(page, 'Errors');
      // The page separates the words of a reason.
      const plain = Object.fromEntries(Object.entries(errors).map(([reason, value]) => [reason.replaceAll(' ', '').toLowerCase(), value]));
      assert.equal(Object.keys(plain).length, counted.length);
      for (const { labels: { code, reason }, value } of counted) shows(code ?? reason, plain[(code ?? reason).toLowerCase()], 0, value);
    });
  });

  await step('errors of each model by reason: the metrics of the gateway', async () => {
    // No Mac admits this model, so the request waits until the client ends it.
    const body = JSON.stringify({ model: 'qwen-coder', messages: [{ role: 'user', content: 'hello' }] });
    await fetch(`${fleet.gateway}/v1/chat/completions`, { method: 'POST', headers: { 'content-type': 'application/json' }, body, signal: AbortSignal.timeout(500) }).catch(() => {});
    await open('requests');
    await settles(async () => {
      const counted = (await ofGateway()).all('rooflet_gateway_model_errors_total');
      assert.ok(counted.some(({ labels }) => labels.model === 'qwen-coder'), 'no error of the model is counted');
      const shown = (await table(page, 'Requests by model')).flatMap((cells) => cells.Errors.split(', ').filter((text) => text !== 'none').map((text) => {
        const [, reason, value] = /^(.*) ([\d,]+)$/.exec(text);
        const { spec } = list('mdep', '-A').find(({ metadata }) => metadata.name === cells.Deployment);
        return `${spec.serving.name ?? cells.Deployment} ${reason.replaceAll(' ', '').toLowerCase()} ${Number(value.replaceAll(',', ''))}`;
      }));
      assert.deepEqual(shown.sort(), counted.map(({ labels, value }) => `${labels.model} ${labels.reason.toLowerCase()} ${value}`).sort());
    });
  });

  await step('times, results and prefix hits of a model: the metrics of its workers', async () => {
    const histogram = (name, counts) => `${counts.map(([le, count]) => `rooflet_worker_${name}_seconds_bucket{le="${le}"} ${count}`).join('\n')}\n`;
    const text = histogram('time_to_first_token', [['0.1', 60], ['0.5', 97], ['1', 100], ['+Inf', 100]])
      + histogram('inter_token_latency', [['0.01', 900], ['0.02', 980], ['0.05', 1000], ['+Inf', 1000]])
      + histogram('request_duration', [['1', 10], ['5', 90], ['30', 100], ['+Inf', 100]])
      + 'rooflet_worker_requests_total{outcome="stop"} 70\nrooflet_worker_requests_total{outcome="length"} 0\nrooflet_worker_requests_total{outcome="failed"} 3\n'
      + 'rooflet_worker_running_requests 2\nrooflet_worker_queued_requests 5\n'
      + 'rooflet_worker_prefix_cache_queried_tokens_total 4000\nrooflet_worker_prefix_cache_hit_tokens_total 1000\n';
    await page.goto(`${fleet.url}/#/plans`);
    await open('requests');
    const select = page.getByRole('combobox', { name: 'Deployment' });
    await select.selectOption('default/chat');
    await page.getByText('a simulated Mac has no engine').waitFor();
    // Simulated Macs have no worker.
    await page.route('**/proxy/metrics/replicas/**', (route) => route.fulfill({ contentType: 'text/plain', body: text }));
    await settles(async () => {
      const replicas = list('mrep', '-l', 'rooflet.dev/deployment=chat').filter((replica) => replica.status?.phase === 'Ready').length;
      const worker = metrics(text);
      const times = await page.evaluate(() => [...document.querySelectorAll('table[aria-label="Times in the engine"] tbody tr')].map((line) => [...line.cells].map((cell) => cell.innerText)));
      const names = { 'To first token': 'time_to_first_token', 'Between tokens': 'inter_token_latency', 'Whole request': 'request_duration' };
      assert.deepEqual(times.map(([label]) => label), Object.keys(names));
      for (const [label, ...cells] of times) {
        [0.5, 0.95, 0.99].forEach((share, index) => showsTime(`${label}, quantile ${share}`, cells[index], 0, worker.quantile(share, `rooflet_worker_${names[label]}_seconds`)));
      }
      const facts = await figures(page, 'Engine');
      shows('running', facts.Running, 0, 2 * replicas);
      shows('queued', facts.Queued, 0, 5 * replicas);
      shows('prefix hits', facts['Prefix hits'], 0, 25);
      shows('looked up', facts['Prefix hits'], 1, 4000 * replicas);
      assert.equal(facts.Ends, `${70 * replicas} stop, ${3 * replicas} failed`);
    });
    await axe(page, 'requests with figures of the engine');
    await page.unroute('**/proxy/metrics/replicas/**');
  });

  await step('requests of the last minute, by model and key', async () => {
    const completed = (name) => sum(list('mrep', '-l', `rooflet.dev/deployment=${name}`), (replica) => replica.status?.requests?.completed);
    await until('the agents have reported the earlier requests', () => completed('chat') === 4 && completed('research') === 4);
    await page.goto(`${fleet.url}/#/plans`);
    await open('requests');
    await until('two readings', async () => !/^–/.test(row(await table(page, 'Requests by key'), 'Key', 'team-a')['Requests/min']));
    const before = (await ofGateway()).sum('rooflet_gateway_key_requests_total', { key: 'team-a' });
    await Promise.all([1, 2, 3, 4, 5, 6].map((index) => ask('chat', index)));
    assert.equal((await ofGateway()).sum('rooflet_gateway_key_requests_total', { key: 'team-a' }) - before, 3);
    await until('the requests of the key', async () => {
      const cells = row(await table(page, 'Requests by key'), 'Key', 'team-a');
      return parseFloat(cells['Requests/min']) === 3 && parseFloat(cells['Tokens/min']) > 0;
    });
    await until('the requests of the model', async () => parseFloat(row(await table(page, 'Requests by model'), 'Deployment', 'chat')['Last minute']) === 6);
    assert.equal(parseFloat(row(await table(page, 'Requests by model'), 'Deployment', 'research')['Last minute']), 0);
  });

  /** Compares the view of a plan with its verdict. */
  const comparesPlan = async (verdict) => {
    const summary = await figures(page);
    const { headroom, purchase } = verdict;
    shows('demand', summary['Demand satisfied'], 0, verdict.demandFactor);
    if (!verdict.proven) shows('bound of the demand', summary['Demand satisfied'], 1, verdict.demandFactorBound);
    shows('used Macs', summary['Macs used'], 0, verdict.nodesUsed);
    shows('Macs', summary['Macs used'], 1, verdict.nodes);
    assert.equal(summary['Macs used'].includes('does not survive'), !verdict.survivesNodeLoss);
    shows('used memory', summary.Memory, 0, headroom.memoryUsedBytes / GIB);
    shows('memory for models', summary.Memory, 1, headroom.memoryLimitBytes / GIB);
    shows('busy chips', summary['Chips busy'], 0, headroom.busyPercent);
    shows('price', summary.Price, 0, verdict.price);
    shows('watts', summary.Price, 1, verdict.watts);
    const machines = await table(page, 'Machines');
    assert.equal(machines.length, verdict.classes.length);
    verdict.classes.forEach((entry, index) => {
      assert.equal(machines[index].Class, entry.name);
      shows(`${entry.name}: used`, machines[index].Used, 0, entry.nodesUsed);
      shows(`${entry.name}: Macs`, machines[index].Used, 1, entry.nodes);
      shows(`${entry.name}: busy`, machines[index].Busy, 0, entry.utilizationPercent);
      shows(`${entry.name}: speed`, machines[index]['Tokens/s'], 0, entry.tokensPerSecond);
      shows(`${entry.name}: bandwidth`, machines[index].Bandwidth, 0, entry.bandwidthBytesPerSecond / 1e9);
    });
    const demand = await page.locator('.plan-models li').allInnerTexts();
    assert.equal(demand.length, verdict.models.length);
    verdict.models.forEach((model, index) => {
      const [name, text] = demand[index].split('\n');
      assert.equal(name, model.name);
      [model.requestsPerSecond, model.tokensPerSecond, model.replicas].forEach((value, at) => shows(`${model.name}: demand`, text, at, value));
    });
    const losses = await figures(page, 'Loss of a Mac');
    assert.deepEqual(Object.keys(losses), (verdict.nodeLosses ?? []).map((loss) => loss.class));
    for (const loss of verdict.nodeLosses ?? []) {
      if (loss.survives) assert.equal(losses[loss.class], 'the others satisfy the demand');
      else if (loss.demandFactor !== undefined) shows(`${loss.class}: demand after the loss`, losses[loss.class], 0, loss.demandFactor);
    }
    const baskets = await page.locator('.basket').allInnerTexts();
    const expected = [purchase?.best, ...(purchase?.alternatives ?? [])].filter(Boolean);
    assert.equal(baskets.length, expected.length);
    expected.forEach((basket, index) => {
      const [, , price, effect] = baskets[index].split('\n').filter(Boolean);
      shows('price of a purchase', price, 0, basket.price);
      shows('demand after a purchase', effect, 0, basket.demandFactor);
      shows('watts of a purchase', effect, 1, basket.watts);
    });
  };

  await step('numbers of plans, claims and events', async () => {
    await open('plans');
    await settles(async () => {
      const { status } = object('cplan', 'next-year');
      const cells = row(await table(page, 'Plans'), 'Plan', 'next-year');
      assert.equal(cells.Macs, status.nodes);
      assert.equal(cells['First limit'], status.binding ?? '–');
    });
    await open('plan');
    await settles(async () => {
      const { status: { verdict } } = object('cplan', 'next-year');
      assert.ok(verdict.purchase.best, 'the plan has no purchase');
      await comparesPlan(verdict);
    });
    // The loss of a Mac is calculated for feasible plans.
    const { spec } = object('cplan', 'next-year');
    const demand = [{ ...spec.demand[0], requestsPerSecond: 0.1 }];
    fleet.apply({ apiVersion: 'rooflet.dev/v1alpha1', kind: 'CapacityPlan', metadata: { name: 'spare', namespace: 'default' }, spec: { ...spec, demand } });
    await page.goto(`${fleet.url}/#/plans/default/spare`);
    await page.getByRole('heading', { level: 1, name: 'spare' }).waitFor();
    await settles(async () => {
      const { status: { verdict } } = object('cplan', 'spare');
      assert.ok(verdict.nodeLosses?.length > 0, `no loss of a Mac: ${verdict.summary}`);
      await comparesPlan(verdict);
    });
    kubectl('delete', 'cplan/spare');
    await open('claims');
    await settles(async () => {
      const { status } = object('pclaim', 'blog-77');
      assert.equal(row(await table(page, 'Claims'), 'Claim', 'blog-77').Passed, status.figures);
    });
    await open('events');
    await settles(async () => {
      const events = list('events', '-A');
      const buttons = await page.getByRole('group', { name: 'Type' }).getByRole('button').allInnerTexts();
      shows('events', buttons[0], 0, events.length);
      shows('warnings', buttons[1], 0, events.filter((event) => event.type === 'Warning').length);
    });
  });
}
