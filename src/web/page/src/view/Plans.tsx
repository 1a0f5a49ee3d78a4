// Capacity plans: does the fleet satisfy a demand, and what would.

import { useMemo } from 'preact/hooks';
import { keyOf, type Basket, type CapacityPlan, type PlanVerdict } from '../api/kinds';
import type { Health } from '../fleet/health';
import { bandwidth, bytes, count, gib, number, percent, plural, short, UNKNOWN } from '../format/text';
import { href } from '../router';
import { plans } from '../store';
import { UsageBar } from '../ui/Bar';
import { Columns, Facts, Figure, ObjectHead, Panel } from '../ui/Panel';
import { Age, Empty, Loaded, State } from '../ui/State';
import { Table, type Column } from '../ui/Table';
import { useAllowed, useTitle, useWatch } from '../ui/use';

function planHealth(plan: CapacityPlan): Health {
  const verdict = plan.status?.verdict;
  if (!verdict) {
    const failed = plan.status?.conditions?.find((entry) => entry.status === 'False');
    return failed ? { level: 'bad', label: 'No answer', detail: failed.message } : { level: 'busy', label: 'Calculating' };
  }
  return verdict.feasible ? { level: 'good', label: 'Feasible' } : { level: 'bad', label: 'Not feasible', detail: verdict.summary };
}

const COLUMNS: Column<CapacityPlan>[] = [
  {
    id: 'name', title: 'Plan', width: 36, sort: (plan) => plan.metadata.name,
    cell: (plan) => <><span class="cell-main">{plan.metadata.name}</span><span class="cell-sub">{plan.spec.demand.map((demand) => demand.name ?? demand.model).join(', ')}</span></>,
  },
  { id: 'state', title: 'Answer', width: 24, sort: (plan) => planHealth(plan).label, cell: (plan) => <State health={planHealth(plan)} /> },
  { id: 'binding', title: 'First limit', width: 22, priority: 2, sort: (plan) => plan.status?.binding, cell: (plan) => plan.status?.binding ?? UNKNOWN },
  { id: 'nodes', title: 'Macs', hint: 'Used and all Macs', width: 10, numeric: true, sort: (plan) => plan.status?.nodes, cell: (plan) => plan.status?.nodes ?? UNKNOWN },
  { id: 'age', title: 'Age', width: 8, numeric: true, priority: 2, sort: (plan) => -Date.parse(plan.metadata.creationTimestamp ?? ''), cell: (plan) => <Age at={plan.metadata.creationTimestamp} /> },
];

export function Plans() {
  useTitle('Plans');
  useWatch(plans);
  const mayCreate = useAllowed('create', 'capacityplans', 'default');
  const rows = useMemo(() => [...plans.objects.value.items.values()], [plans.objects.value]);
  return (
    <>
      <div class="view-head"><h1>Plans</h1>{mayCreate && <a class="button" href={href('plans', 'new')}>New plan</a>}</div>
      <Loaded of={plans}>
        <Table label="Plans" rows={rows} columns={COLUMNS} name={(plan) => keyOf(plan.metadata)} order={{ column: 'name', descending: false }} link={(plan) => href('plans', plan.metadata.namespace ?? 'default', plan.metadata.name)} rowHeight={52} empty={<Empty title="No plans">A plan answers whether Macs satisfy a demand, and what to buy if they do not.</Empty>} />
      </Loaded>
    </>
  );
}

export function Plan({ namespace, name }: { namespace: string; name: string }) {
  useTitle(name);
  useWatch(plans);
  const plan = plans.objects.value.items.get(`${namespace}/${name}`);
  return (
    <Loaded of={plans}>
      {plan ? (
        <>
          <ObjectHead back="Plans" backTo={href('plans')} title={plan.metadata.name} state={<State health={planHealth(plan)} />}>{plan.status?.verdict?.summary ?? planHealth(plan).detail}</ObjectHead>
          {plan.status?.verdict && <Verdict of={plan.status.verdict} />}
        </>
      ) : <Empty title={`Namespace ${namespace} has no plan ${name}`}><a href={href('plans')}>Show all plans</a></Empty>}
    </Loaded>
  );
}

const times = (factor: number) => `×${short(factor)}`;

function Verdict({ of }: { of: PlanVerdict }) {
  const { headroom } = of;
  return (
    <>
      <dl class="summary">
        <Figure label="Demand satisfied" value={times(of.demandFactor)} note={of.proven ? 'proven maximum' : `at most ${times(of.demandFactorBound)}`} />
        <Figure label="Macs used" value={count(of.nodesUsed)} unit={`of ${count(of.nodes)}`} note={of.survivesNodeLoss ? 'survives the loss of one Mac' : 'does not survive the loss of one Mac'} />
        <Figure label="Memory" value={gib(headroom.memoryUsedBytes)} unit={`of ${bytes(headroom.memoryLimitBytes)}`} note={<UsageBar used={headroom.memoryUsedBytes} reserved={headroom.memoryUsedBytes} limit={headroom.memoryLimitBytes} label="Memory of the plan" />} />
        <Figure label="Chips busy" value={percent(headroom.busyPercent)} unit={`of ${percent(headroom.busyLimitPercent)}`} note={<UsageBar used={headroom.busyPercent} reserved={headroom.busyPercent} limit={100} label="Utilization of the chips" />} />
        {of.price !== undefined && <Figure label="Price" value={count(of.price)} note={of.watts === undefined ? undefined : `${count(of.watts)} W under load`} />}
      </dl>
      {(of.assumptions?.length ?? 0) > 0 && (
        <Panel title="Assumptions"><ul>{of.assumptions!.map((assumption) => <li key={assumption}>{assumption}</li>)}</ul></Panel>
      )}
      <Panel title="Machines">
          <div class="table-frame"><table class="table plain" aria-label="Machines">
            <thead><tr><th scope="col">Class</th><th scope="col" class="numeric">Used</th><th scope="col" class="numeric">Busy</th><th scope="col" class="numeric p2">Tokens/s</th><th scope="col" class="numeric p2">Bandwidth</th><th scope="col" class="p2">Limit</th></tr></thead>
            <tbody>
              {of.classes.map((entry) => (
                <tr key={entry.name}>
                  <td><span class="cell-main">{entry.name}</span></td>
                  <td class="numeric">{entry.nodesUsed}<span class="of"> / {entry.nodes}</span></td>
                  <td class="numeric"><span class="bar-cell"><span class="bar-text">{percent(entry.utilizationPercent)}</span><UsageBar used={entry.utilizationPercent} reserved={entry.utilizationPercent} limit={100} label={`${percent(entry.utilizationPercent)} busy`} /></span></td>
                  <td class="numeric p2">{number(entry.tokensPerSecond)}</td>
                  <td class="numeric p2"><span class={entry.basis === 'Nominal' ? 'nominal-text' : ''}>{bandwidth(entry.bandwidthBytesPerSecond)}</span><span class="cell-sub">{entry.basis === 'Nominal' ? 'data sheet' : 'measured'}</span></td>
                  <td class="p2">{entry.binding ? `${entry.binding} at ${entry.breaksAt === undefined ? UNKNOWN : times(entry.breaksAt)}` : UNKNOWN}</td>
                </tr>
              ))}
            </tbody>
          </table></div>
      </Panel>
      <Columns
        side={<><Panel title="Models">
          <ul class="plan-models">
            {of.models.map((model) => (
              <li key={model.name}>
                <span class={`state ${model.served ? 'good' : 'bad'}`}><i class="dot" aria-hidden="true" /><b>{model.name}</b></span>
                <span class="muted">{number(model.requestsPerSecond)} requests/s, {number(model.tokensPerSecond)} tok/s, {plural(model.replicas, 'replica')}</span>
              </li>
            ))}
          </ul>
          <Facts of={[
            ['Twice the memory', headroom.twiceMemoryFactor === undefined ? UNKNOWN : times(headroom.twiceMemoryFactor)],
            ['Twice the speed', headroom.twiceSpeedFactor === undefined ? UNKNOWN : times(headroom.twiceSpeedFactor)],
          ]} />
        </Panel>
        </>}
        main={<>{of.purchase && (
          <Panel title="Purchase" aside={<span class="muted">minimizes {of.purchase.minimises === 'Price' ? 'the price' : 'the number of Macs'}</span>}>
            {of.purchase.best ? <Purchase of={of.purchase.best} title={of.purchase.proven ? 'Smallest purchase, proven' : 'Smallest purchase found'} /> : <p>{of.purchase.shortfall}</p>}
            {(of.purchase.alternatives ?? []).map((basket, index) => <Purchase key={index} of={basket} title="Alternative" />)}
            {(of.purchase.rejectedOffers?.length ?? 0) > 0 && (
              <Facts of={of.purchase.rejectedOffers!.map((offer) => [offer.model ? `${offer.name} for ${offer.model}` : offer.name, offer.message])} />
            )}
          </Panel>
        )}
        {(of.nodeLosses?.length ?? 0) > 0 && (
          <Panel title="Loss of a Mac">
            <Facts of={of.nodeLosses!.map((loss) => [loss.class, loss.survives ? 'the others satisfy the demand' : `the others satisfy ${loss.demandFactor === undefined ? 'less' : times(loss.demandFactor)}`])} />
          </Panel>
        )}</>}
      />
    </>
  );
}

function Purchase({ of, title }: { of: Basket; title: string }) {
  return (
    <div class="basket">
      <div><span class="cell-sub">{title}</span><b>{(of.items ?? []).map((item) => `${item.count} × ${item.name}`).join(' + ') || 'nothing to buy'}</b></div>
      <span class="basket-price">{of.price === undefined ? plural(of.nodes, 'Mac') : count(of.price)}</span>
      <span class="muted">satisfies {times(of.demandFactor)}{of.watts === undefined ? '' : `, ${count(of.watts)} W`}{of.survivesNodeLoss ? ', survives the loss of one Mac' : ''}</span>
    </div>
  );
}
