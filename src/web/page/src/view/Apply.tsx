// Apply YAML: a dry run and its differences first.

import { useState } from 'preact/hooks';
import { apply, type Applied } from '../actions';
import type { KubeObject } from '../api/kinds';
import { diffLines } from '../format/diff';
import { plural } from '../format/text';
import { toYaml } from '../format/yaml';
import { messageOf } from '../ui/Dialog';
import { DiffView } from '../ui/DiffView';
import { Panel } from '../ui/Panel';
import { useTitle } from '../ui/use';

const EXAMPLE = `apiVersion: rooflet.dev/v1alpha1
kind: ModelDeployment
metadata:
  name: chat
spec:
  replicas: 1
  model:
    source: hf://mlx-community/Qwen3-8B-4bit
  serving:
    contextTokens: 8192
    maxConcurrency: 4
`;

/** Removes fields that the server manages, which hide the differences. */
function shown(object: KubeObject | undefined): string {
  if (!object) return '';
  const { managedFields: _fields, resourceVersion: _version, uid: _uid, creationTimestamp: _created, generation: _generation, annotations, ...metadata } = object.metadata as KubeObject['metadata'] & { managedFields?: unknown };
  const { 'kubectl.kubernetes.io/last-applied-configuration': _last, ...rest } = annotations ?? {};
  const { status: _status, metadata: _metadata, ...content } = object as KubeObject & { status?: unknown };
  return toYaml({ apiVersion: content.apiVersion, kind: content.kind, metadata: { ...metadata, annotations: Object.keys(rest).length > 0 ? rest : undefined }, ...content });
}

export function Apply({ example }: { example?: string }) {
  useTitle('Apply YAML');
  const [text, setText] = useState(example ? EXAMPLE : '');
  const [checked, setChecked] = useState<{ text: string; applied: Applied[] }>();
  const [done, setDone] = useState<number>();
  const [problem, setProblem] = useState<string>();
  const [busy, setBusy] = useState(false);
  const current = checked?.text === text ? checked : undefined;
  const run = async (dryRun: boolean) => {
    setBusy(true);
    setProblem(undefined);
    setDone(undefined);
    try {
      const applied = await apply(text, dryRun);
      if (dryRun) setChecked({ text, applied });
      else {
        setChecked(undefined);
        setDone(applied.length);
      }
    } catch (error) {
      setProblem(messageOf(error));
    }
    setBusy(false);
  };
  const edit = (next: string) => {
    setText(next);
    setDone(undefined);
  };
  return (
    <>
      <div class="view-head"><h1>Apply YAML</h1>
        <button type="button" class="button small" onClick={() => edit(EXAMPLE)}>Example</button>
      </div>
      <form onSubmit={(event) => { event.preventDefault(); void run(true); }}>
        <label class="field"><span>Objects, separated by <code>---</code></span>
          <textarea class="editor" rows={18} spellcheck={false} value={text} onInput={(event) => edit(event.currentTarget.value)} />
        </label>
        {problem && <p class="problem" role="alert">{problem}</p>}
        {done !== undefined && <p class="success" role="status">Applied {plural(done, 'object')}.</p>}
        <div class="actions">
          <button type="submit" class={current ? 'button' : 'button primary'} disabled={busy || text.trim() === ''}>{busy ? 'Checking…' : 'Check with a dry run'}</button>
          {current && <button type="button" class="button primary" disabled={busy} onClick={() => void run(false)}>Apply {plural(current.applied.length, 'object')}</button>}
        </div>
      </form>
      {current && (
        <div class="column">
          {current.applied.map(({ identity, before, after }) => (
            <Panel key={`${identity.kind}/${identity.namespace}/${identity.name}`} title={`${identity.kind} ${identity.name}`} aside={<span class="tag">{before ? 'change' : 'create'}</span>}>
              <DiffView lines={diffLines(shown(before), shown(after))} />
            </Panel>
          ))}
        </div>
      )}
    </>
  );
}
