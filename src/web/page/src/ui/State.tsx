// States of objects, and states of a view: loading, empty, disconnected, forbidden.

import type { ComponentChildren } from 'preact';
import type { Health } from '../fleet/health';
import { age, UNKNOWN } from '../format/text';
import { since } from '../clock';
import type { Collection } from '../store';

export function State({ health }: { health: Health }) {
  return (
    <span class={`state ${health.level}`} title={health.detail}>
      <i class="dot" aria-hidden="true" />
      <span class="state-label">{health.label}</span>
    </span>
  );
}

export function Age({ at }: { at?: string }) {
  return <time dateTime={at} title={at}>{at ? age(since(at)) : UNKNOWN}</time>;
}

export function Empty({ title, children }: { title: string; children?: ComponentChildren }) {
  return (
    <div class="empty">
      <p class="empty-title">{title}</p>
      {children && <div class="muted">{children}</div>}
    </div>
  );
}

/** Shows the children once the objects are known, otherwise why they are not. */
export function Loaded({ of, children }: { of: Collection<never>[] | unknown; children: ComponentChildren }) {
  const collections = (Array.isArray(of) ? of : [of]) as Collection<never>[];
  for (const collection of collections) {
    if (collection.sync.value === 'forbidden') {
      return (
        <Empty title={`You may not list ${collection.resource.plural}`}>
          <p>{collection.problem.value?.message}</p>
          <p>Ask an administrator for a role that permits it.</p>
        </Empty>
      );
    }
  }
  const missing = collections.filter((collection) => !collection.known.value);
  const [first] = missing;
  if (first?.sync.value === 'stale') {
    return (
      <Empty title="The API server does not answer">
        <p>{first.problem.value?.message}</p>
        <button type="button" class="button" onClick={() => missing.forEach((collection) => collection.start())}>Retry now</button>
      </Empty>
    );
  }
  if (first) {
    return <div class="skeleton" role="status" aria-label="Loading"><i /><i /><i /><i /><i /></div>;
  }
  return <>{children}</>;
}
