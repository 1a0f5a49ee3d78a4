// What-if plan: models, Macs and offers in a form. The object that the form creates is shown.

import { useState } from 'preact/hooks';
import { PLANS } from '../api/resources';
import { toYaml } from '../format/yaml';
import { href } from '../router';
import { deployments, nodes } from '../store';
import { ObjectHead, Panel } from '../ui/Panel';
import { Loaded } from '../ui/State';
import { useCreate, useTitle } from '../ui/use';

type Row = Record<string, string>;
/** Name in the object, label, and kind: text, number, or one of them that may be empty. */
type Field = [name: string, label: string, isNumber: boolean, isOptional?: boolean];

const OFFER: Field[] = [['chip', 'Chip', false], ['gpuCores', 'GPU cores', true, true], ['memory', 'Memory', false], ['price', 'Price', true, true], ['watts', 'Watts', true, true]];
const MAC: Field[] = [['count', 'Number', true], ...OFFER];
const DEMAND: Field[] = [['model', 'Model', false], ['quantization', 'Weights', false, true], ['requestsPerSecond', 'Requests/s', true], ['promptTokens', 'Prompt tokens', true], ['answerTokens', 'Answer tokens', true]];
const USE: Row = { requestsPerSecond: '0.1', promptTokens: '900', answerTokens: '300' };

/** Returns the Macs of the fleet, equal ones in one row. */
function today(): Row[] {
  const rows = new Map<string, Row>();
  for (const { status } of nodes.objects.value.items.values()) {
    if (!status?.chip || !status.capacity) continue;
    const { chip: { name, gpuCores }, capacity: { memory } } = status;
    const key = [name, gpuCores, memory].join();
    rows.set(key, { count: String(Number(rows.get(key)?.count ?? 0) + 1), chip: name, gpuCores: String(gpuCores ?? ''), memory });
  }
  return [...rows.values()];
}

/** Returns the objects of the rows, or undefined without rows. */
function objects(rows: Row[], fields: Field[]): unknown[] | undefined {
  return rows.length === 0 ? undefined : rows.map((row) => Object.fromEntries(fields.flatMap(([name, , isNumber]) => {
    const text = row[name]?.trim();
    return text ? [[name, isNumber ? Number(text) : text]] : [];
  })));
}

function Rows({ title, fields, rows, set, added = {} }: { title: string; fields: Field[]; rows: Row[]; set: (rows: Row[]) => void; added?: Row }) {
  return (
    <Panel title={title} aside={<button type="button" class="button small" aria-label={`Add to ${title}`} onClick={() => set([...rows, added])}>Add</button>}>
      {rows.map((row, at) => (
        <div key={at} class="claim-form" role="group" aria-label={`${title} ${at + 1}`}>
          {fields.map(([name, label, isNumber, isOptional]) => (
            <label key={name} class="field"><span>{label}</span><input inputMode={isNumber ? 'decimal' : undefined} pattern={isNumber ? '\\d+(\\.\\d+)?' : undefined} title={isNumber ? 'A number, such as 0.5' : undefined} required={!isOptional} value={row[name] ?? ''} onInput={(event) => set(rows.map((other) => (other === row ? { ...row, [name]: event.currentTarget.value } : other)))} /></label>
          ))}
          <button type="button" class="button" onClick={() => set(rows.filter((other) => other !== row))}>Remove</button>
        </div>
      ))}
    </Panel>
  );
}

export function WhatIf() {
  useTitle('New plan');
  return <Loaded of={[nodes, deployments]}><Form /></Loaded>;
}

function Form() {
  const [demand, setDemand] = useState<Row[]>(() => [...new Set([...deployments.objects.value.items.values()].map(({ spec }) => spec.model.source))].map((model) => ({ ...USE, model })));
  const [fleet] = useState(today);
  const [macs, setMacs] = useState(fleet);
  const [offers, setOffers] = useState<Row[]>([]);
  const body = {
    apiVersion: 'rooflet.dev/v1alpha1', kind: 'CapacityPlan', metadata: { generateName: 'what-if-' },
    // An unchanged fleet has measured figures.
    spec: { demand: objects(demand, DEMAND), fleet: macs === fleet ? undefined : { macs: objects(macs, MAC) }, catalogue: objects(offers, OFFER) },
  };
  const [submit, problem] = useCreate(PLANS, 'plans', body);
  return (
    <form class="column" onSubmit={submit}>
      <ObjectHead back="Plans" backTo={href('plans')} title="New plan" state={null}>Change the numbers to add or lose Macs. Offers are Macs that can be bought.</ObjectHead>
      <Rows title="Demand" fields={DEMAND} rows={demand} set={setDemand} added={USE} />
      <Rows title="Macs" fields={MAC} rows={macs} set={setMacs} added={{ count: '1' }} />
      <Rows title="Offers" fields={OFFER} rows={offers} set={setOffers} />
      {problem && <p class="problem" role="alert">{problem}</p>}
      <div class="actions"><button type="submit" class="button primary">Compute</button></div>
      <Panel title="Object"><pre class="code" tabIndex={0} aria-label="YAML">{toYaml(body)}</pre></Panel>
    </form>
  );
}
