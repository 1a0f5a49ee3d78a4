// Hooks of the views.

import { useEffect, useState } from 'preact/hooks';
import type { KubeObject } from '../api/kinds';
import type { Collection } from '../store';
import { allowed } from '../session';

/** Watches a kind while the component is shown. */
export function useWatch<T extends KubeObject>(collection: Collection<T>): void {
  useEffect(() => collection.use(), [collection]);
}

/** Sets the document's title. */
export function useTitle(title: string): void {
  useEffect(() => {
    document.title = `${title} · rooflet`;
  }, [title]);
}

/** Returns whether the user may do this. False until it is known. */
export function useAllowed(verb: string, resource: string, namespace?: string, subresource?: string): boolean {
  const [answer, setAnswer] = useState(false);
  useEffect(() => {
    let current = true;
    void allowed(verb, resource, namespace, subresource).then((value) => current && setAnswer(value));
    return () => {
      current = false;
    };
  }, [verb, resource, namespace, subresource]);
  return answer;
}
