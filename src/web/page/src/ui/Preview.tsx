// Consequences of a change, computed by the server with the controller's plans.

import { useEffect, useState } from 'preact/hooks';
import { send } from '../api/http';
import { messageOf } from './Dialog';

/** Time without a change of the input, before the page requests a preview. */
const DEBOUNCE_MS = 300;

interface Answer {
  replicas: { message: string; course: string }[];
  waiting: string[];
  notes: string[];
  complete: boolean;
  incompleteReason?: string;
}

/** `of` is the changed object, and `patch` the merge patch that the action sends. Without one, the object is deleted. */
export function Preview({ of: object, patch }: { of: { node: string } | { deployment: [string, string] }; patch?: unknown }) {
  const [answer, setAnswer] = useState<Answer | string>();
  const body = JSON.stringify(patch === undefined ? { object, delete: true } : { object, patch });
  useEffect(() => {
    const abort = new AbortController();
    setAnswer(undefined);
    const ask = () => send<Answer>('POST', '/proxy/preview', body, undefined, abort.signal).then(setAnswer, (error) => abort.signal.aborted || setAnswer(messageOf(error)));
    const timer = setTimeout(ask, DEBOUNCE_MS);
    return () => {
      clearTimeout(timer);
      abort.abort();
    };
  }, [body]);
  if (!answer) return <p class="muted" role="status">Computing the preview…</p>;
  if (typeof answer === 'string') return <p class="problem" role="alert">No preview: {answer}</p>;
  const { replicas, waiting, notes, complete, incompleteReason } = answer;
  const items = [...replicas, ...[...waiting, ...notes].map((message) => ({ message, course: '' }))];
  return (
    <div role="status">
      {replicas.length === 0 && <p>No replica moves, starts or stops.</p>}
      {items.length > 0 && <ul tabIndex={0} aria-label="Preview">{items.map(({ message, course }) => <li class={/Pending|Stays/.test(course) ? 'problem' : undefined}>{message}</li>)}</ul>}
      {!complete && <p class="problem">Further consequences are not computed: {incompleteReason}</p>}
    </div>
  );
}
