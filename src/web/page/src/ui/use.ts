// Hooks of the views.

import { useEffect, useRef, useState } from 'preact/hooks';
import { create } from '../actions';
import type { KubeObject } from '../api/kinds';
import type { Resource } from '../api/resources';
import { go } from '../router';
import type { Collection } from '../store';
import { allowed } from '../session';
import { messageOf } from './Dialog';

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

/** Returns the handler of a form that creates an object and opens its view, and the last problem. */
export function useCreate(resource: Resource, view: string, body: unknown): [(event: Event) => Promise<void>, string | undefined] {
  const [problem, setProblem] = useState<string>();
  const shown = useRef(true);
  useEffect(() => () => {
    shown.current = false;
  }, []);
  const submit = async (event: Event) => {
    event.preventDefault();
    setProblem(undefined);
    try {
      const { metadata } = await create<KubeObject>(resource, 'default', body);
      // The user may have opened another view in the meantime.
      if (shown.current) go(view, metadata.namespace ?? 'default', metadata.name);
    } catch (error) {
      setProblem(messageOf(error));
    }
  };
  return [submit, problem];
}
