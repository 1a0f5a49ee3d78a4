// Published performance numbers, and what their check found.

import { useMemo, useState } from 'preact/hooks';
import { keyOf, type PerformanceClaim } from '../api/kinds';
import { CLAIMS } from '../api/resources';
import type { Health } from '../fleet/health';
import { short, UNKNOWN, words } from '../format/text';
import { href } from '../router';
import { claims } from '../store';
import { ObjectHead, Panel } from '../ui/Panel';
import { Age, Empty, Loaded, State } from '../ui/State';
import { Table, type Column } from '../ui/Table';
import { useAllowed, useCreate, useTitle, useWatch } from '../ui/use';

function verdictHealth(verdict: string | undefined): Health {
  if (!verdict) return { level: 'busy', label: 'Checking' };
  if (verdict === 'Plausible') return { level: 'good', label: 'Plausible' };
  if (verdict === 'Untestable') return { level: 'idle', label: 'Cannot be checked' };
  return { level: verdict === 'MethodUnclear' ? 'warn' : 'bad', label: verdict === 'ExceedsRoofline' ? 'Exceeds the roofline' : words(verdict) };
}

const COLUMNS: Column<PerformanceClaim>[] = [
  {
    id: 'name', title: 'Claim', width: 34, sort: (claim) => claim.metadata.name,
    cell: (claim) => <><span class="cell-main">{claim.metadata.name}</span><span class="cell-sub">{claim.spec.figures?.map((figure) => `${figure.value} ${words(figure.kind).toLowerCase()}`).join(', ') || UNKNOWN}</span></>,
  },
  { id: 'verdict', title: 'Verdict', width: 24, sort: (claim) => claim.status?.verdict, cell: (claim) => <State health={verdictHealth(claim.status?.verdict)} /> },
  { id: 'figures', title: 'Passed', hint: 'Checks without a finding, and all checks', width: 10, numeric: true, sort: (claim) => claim.status?.figures, cell: (claim) => claim.status?.figures ?? UNKNOWN },
  { id: 'model', title: 'Model', width: 18, priority: 2, sort: (claim) => claim.spec.model?.name, cell: (claim) => claim.spec.model?.name ?? UNKNOWN },
  { id: 'chip', title: 'Chip', width: 14, priority: 2, sort: (claim) => claim.spec.hardware?.chip, cell: (claim) => claim.spec.hardware?.chip ?? UNKNOWN },
];

export function Claims() {
  useTitle('Claims');
  useWatch(claims);
  const mayCreate = useAllowed('create', 'performanceclaims', 'default');
  const rows = useMemo(() => [...claims.objects.value.items.values()], [claims.objects.value]);
  return (
    <>
      <div class="view-head"><h1>Claims</h1></div>
      {mayCreate && <NewClaim />}
      <Loaded of={claims}>
        <Table label="Claims" rows={rows} columns={COLUMNS} name={(claim) => keyOf(claim.metadata)} order={{ column: 'name', descending: false }} link={(claim) => href('claims', claim.metadata.namespace ?? 'default', claim.metadata.name)} rowHeight={52} empty={<Empty title="No claims">Enter a published number above. The controller checks it against the limits of the chip.</Empty>} />
      </Loaded>
    </>
  );
}

const KINDS: [string, string][] = [
  ['decodeTokensPerSecond', 'Decode tokens/s'], ['prefillTokensPerSecond', 'Prefill tokens/s'], ['timeToFirstTokenSeconds', 'Time to first token'],
  ['endToEndTokensPerSecond', 'End-to-end tokens/s'], ['bandwidth', 'Memory bandwidth'], ['memoryBytes', 'Memory in use'], ['fileBytes', 'Size of the files'],
];

function NewClaim() {
  const [fields, setFields] = useState({ value: '', kind: 'decodeTokensPerSecond', chip: '', model: '', quantization: '', prompt: '', source: '' });
  const set = (name: keyof typeof fields) => (event: { currentTarget: { value: string } }) => setFields({ ...fields, [name]: event.currentTarget.value });
  const optional = (text: string) => text.trim() || undefined;
  const body = {
    apiVersion: 'rooflet.dev/v1alpha1', kind: 'PerformanceClaim', metadata: { generateName: 'claim-' },
    spec: {
      source: optional(fields.source), hardware: { chip: optional(fields.chip) }, model: { name: optional(fields.model), quantization: optional(fields.quantization) },
      workload: { prompt: optional(fields.prompt) }, figures: [{ kind: fields.kind, value: fields.value.trim() }],
    },
  };
  const [submit, problem] = useCreate(CLAIMS, 'claims', body);
  const input = (name: keyof typeof fields, label: string, placeholder: string, required = false) => (
    <label class="field"><span>{label}</span><input value={fields[name]} placeholder={placeholder} required={required} onInput={set(name)} /></label>
  );
  return (
    <form class="claim-form" onSubmit={submit} aria-label="Check a number">
      {input('value', 'Published number', '77.7', true)}
      <label class="field"><span>What it is</span><select value={fields.kind} onChange={set('kind')}>{KINDS.map(([value, label]) => <option key={value} value={value}>{label}</option>)}</select></label>
      {input('model', 'Model', 'gemma-3-12b-it-4bit')}
      {input('quantization', 'Weights', 'mlx4')}
      {input('chip', 'Chip', 'M4 Pro')}
      {input('prompt', 'Prompt tokens', '4K')}
      {input('source', 'Source', 'https://…')}
      <button type="submit" class="button primary">Check</button>
      {problem && <p class="problem" role="alert">{problem}</p>}
    </form>
  );
}

export function Claim({ namespace, name }: { namespace: string; name: string }) {
  useTitle(name);
  useWatch(claims);
  const claim = claims.objects.value.items.get(`${namespace}/${name}`);
  return (
    <Loaded of={claims}>
      {claim ? <Verdict claim={claim} /> : <Empty title={`Namespace ${namespace} has no claim ${name}`}><a href={href('claims')}>Show all claims</a></Empty>}
    </Loaded>
  );
}

function Verdict({ claim }: { claim: PerformanceClaim }) {
  const { status, spec } = claim;
  return (
    <>
      <ObjectHead back="Claims" backTo={href('claims')} title={claim.metadata.name} state={<State health={verdictHealth(status?.verdict)} />}>
        {[spec.model?.name, spec.hardware?.chip, spec.source].filter(Boolean).join(' · ') || UNKNOWN} · <Age at={claim.metadata.creationTimestamp} /> ago
      </ObjectHead>
      {(status?.findings ?? []).map((finding) => (
        <section key={finding.field + finding.message} class="why" aria-label={`Finding: ${finding.field}`}>
          <h2>{verdictHealth(finding.verdict).label} <code>{finding.field}</code></h2>
          {finding.claimed && (
            <dl class="figures two">
              <div class="figure"><dt>Claimed</dt><dd><span class="figure-value">{finding.claimed}</span>{finding.factor !== undefined && <div class="figure-note">×{short(finding.factor)} of the limit</div>}</dd></div>
              {finding.right && <div class="figure"><dt>Possible</dt><dd><span class="figure-value">{finding.right}</span></dd></div>}
            </dl>
          )}
          <p>{finding.message}</p>
        </section>
      ))}
      <Panel title="Checks" aside={<span class="muted">{status?.figures ?? UNKNOWN} without a finding</span>}>
          <ul class="checks">
            {(status?.checks ?? []).map((check) => (
              <li key={check.field + check.subject}>
                <State health={verdictHealth(check.verdict)} />
                <div><code>{check.subject}</code>{(check.remarks ?? []).map((remark) => <p key={remark} class="muted">{remark}</p>)}</div>
              </li>
            ))}
          </ul>
      </Panel>
    </>
  );
}
