// What-if plan: models, Macs and offers in a form. The object that the form creates is shown.

import { useEffect, useState } from 'preact/hooks';
import { json } from '../api/http';
import { PLANS } from '../api/resources';
import { toYaml } from '../format/yaml';
import { parseQuantity } from '../format/quantity';
import { bandwidth } from '../format/text';
import { href } from '../router';
import { deployments, nodes } from '../store';
import { ObjectHead, Panel } from '../ui/Panel';
import { messageOf } from '../ui/Dialog';
import { Loaded } from '../ui/State';
import { useCreate, useTitle } from '../ui/use';

type Row = Record<string, string>;
/** Name in the object, label, and kind: text, number, or one of them that may be empty. */
type Field = [name: string, label: string, isNumber: boolean, isOptional?: boolean];

/** Chip with the memory sizes that are sold with it. */
interface Sold {
  chip: string;
  gpuCores: number;
  bandwidthBytesPerSecond: number;
  memory: string[];
}

const CHOSEN: Field[] = [['chip', 'Chip', false], ['gpuCores', 'GPU cores', true, true], ['memory', 'Memory', false]];
const OFFER: Field[] = [...CHOSEN, ['price', 'Price', true, true], ['watts', 'Watts', true, true]];
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

interface RowsProps {
  title: string;
  fields: Field[];
  rows: Row[];
  set: (rows: Row[]) => void;
  added?: Row;
  sold?: Sold[];
  /** Text without a row. */
  none?: string;
}

function Rows({ title, fields, rows, set, added = {}, sold, none }: RowsProps) {
  return (
    <Panel title={title} aside={<button type="button" class="button small" aria-label={`Add to ${title}`} onClick={() => set([...rows, added])}>Add</button>}>
      {rows.length === 0 && <p class="muted">{none}</p>}
      {rows.map((row, at) => (
        <div key={at} class="form-row" role="group" aria-label={`${title} ${at + 1}`}>
          {sold && <Choice row={row} sold={sold} set={(chosen) => set(rows.map((other) => (other === row ? { ...row, ...chosen } : other)))} />}
          {fields.filter((field) => !sold || !CHOSEN.includes(field)).map(([name, label, isNumber, isOptional]) => (
            <label key={name} class={name === 'model' ? 'field wide' : 'field'}><span>{label}</span><input inputMode={isNumber ? 'decimal' : undefined} pattern={isNumber ? '\\d+(\\.\\d+)?' : undefined} title={isNumber ? 'A number, such as 0.5' : undefined} required={!isOptional} value={row[name] ?? ''} onInput={(event) => set(rows.map((other) => (other === row ? { ...row, [name]: event.currentTarget.value } : other)))} /></label>
          ))}
          <button type="button" class="button quiet" onClick={() => set(rows.filter((other) => other !== row))}>Remove</button>
        </div>
      ))}
    </Panel>
  );
}

/** Selects a Mac of the catalogue: the chip, and a memory size that is sold with it. */
function Choice({ row, sold, set }: { row: Row; sold: Sold[]; set: (chosen: Row) => void }) {
  const keyOf = (chip: string, gpuCores: string) => `${chip.replace(/^Apple /, '')}/${gpuCores}`;
  const own = keyOf(row.chip ?? '', row.gpuCores ?? '');
  const found = sold.find(({ chip, gpuCores }) => keyOf(chip, String(gpuCores)) === own);
  const choose = (key: string) => {
    const mac = sold.find(({ chip, gpuCores }) => keyOf(chip, String(gpuCores)) === key);
    if (mac) set({ chip: mac.chip.replace(/^Apple /, ''), gpuCores: String(mac.gpuCores), memory: mac.memory.includes(size) ? size : mac.memory[0]! });
  };
  const sizes = found?.memory ?? [];
  const size = sizes.find((other) => parseQuantity(other) === parseQuantity(row.memory)) ?? row.memory ?? '';
  return (
    <>
      <label class="field wide"><span>Chip</span>
        <select required value={found || row.chip ? own : ''} onChange={(event) => choose(event.currentTarget.value)}>
          {!found && <option value={row.chip ? own : ''}>{row.chip ? `${row.chip}, not in the catalogue` : 'Choose a chip'}</option>}
          {sold.map(({ chip, gpuCores, bandwidthBytesPerSecond }) => (
            <option key={keyOf(chip, String(gpuCores))} value={keyOf(chip, String(gpuCores))}>{chip.replace(/^Apple /, '')}, {gpuCores} GPU cores, {bandwidth(bandwidthBytesPerSecond)}</option>
          ))}
        </select>
      </label>
      <label class="field"><span>Memory</span>
        <select required value={size} onChange={(event) => set({ memory: event.currentTarget.value })}>
          {!sizes.includes(size) && <option value={size}>{size.replace(/Gi$/, ' GiB') || '–'}</option>}
          {sizes.map((other) => <option key={other} value={other}>{other.replace(/Gi$/, ' GiB')}</option>)}
        </select>
      </label>
    </>
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
  const [sold, setSold] = useState<Sold[]>([]);
  const [unknown, setUnknown] = useState<string>();
  useEffect(() => {
    void json<{ macs: Sold[] }>('/proxy/catalogue').then(({ macs }) => setSold(macs), (error) => setUnknown(messageOf(error)));
  }, []);
  return (
    <form class="column" onSubmit={submit}>
      <ObjectHead back="Plans" backTo={href('plans')} title="New plan" state={null}>Change the numbers to add or lose Macs. Offers are Macs that can be bought.</ObjectHead>
      {unknown && <p class="problem" role="alert">The catalogue of Macs is not available: {unknown}</p>}
      <Rows title="Demand" fields={DEMAND} rows={demand} set={setDemand} added={USE} none="Add the models that the Macs serve." />
      <Rows title="Macs" fields={MAC} rows={macs} set={setMacs} added={{ count: '1' }} sold={sold} none="The plan uses the Macs of the fleet." />
      <Rows title="Offers" fields={OFFER} rows={offers} set={setOffers} sold={sold} none="Add Macs to find the cheapest purchase that satisfies the demand." />
      {problem && <p class="problem" role="alert">{problem}</p>}
      <div class="actions"><button type="submit" class="button primary">Compute</button></div>
      <Panel title="Object"><pre class="code" tabIndex={0} aria-label="YAML">{toYaml(body)}</pre></Panel>
    </form>
  );
}
