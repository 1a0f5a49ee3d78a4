// Events about one object. They are listed again while the object changes, not watched.

import { useEffect, useState } from 'preact/hooks';
import { eventTime, type KubeEvent, type KubeObject } from '../api/kinds';
import { json } from '../api/http';
import { EVENTS, listPath } from '../api/resources';
import { words } from '../format/text';
import { messageOf } from './Dialog';
import { Age } from './State';

const MAX_EVENTS = 60;
const REFRESH_SECONDS = 10;

export function ObjectEvents({ of }: { of: KubeObject }) {
  const [events, setEvents] = useState<KubeEvent[]>();
  const [problem, setProblem] = useState<string>();
  const { name, uid, resourceVersion } = of.metadata;
  useEffect(() => {
    const stop = new AbortController();
    const load = () => {
      const selector = encodeURIComponent(`involvedObject.name=${name}${uid ? `,involvedObject.uid=${uid}` : ''}`);
      json<{ items: KubeEvent[] }>(`${listPath(EVENTS)}?fieldSelector=${selector}&limit=500`, { signal: stop.signal })
        .then((list) => {
          setProblem(undefined);
          setEvents(list.items.sort((a, b) => (eventTime(b) ?? '').localeCompare(eventTime(a) ?? '')).slice(0, MAX_EVENTS));
        })
        .catch((error: unknown) => !stop.signal.aborted && setProblem(messageOf(error)));
    };
    const soon = setTimeout(load, events === undefined ? 0 : 1000);
    const timer = setInterval(load, REFRESH_SECONDS * 1000);
    return () => {
      stop.abort();
      clearTimeout(soon);
      clearInterval(timer);
    };
  }, [name, uid, resourceVersion]);
  if (problem && !events) return <p class="muted">{problem}</p>;
  if (!events) return <p class="muted">Loading…</p>;
  if (events.length === 0) return <p class="muted">No events. The API server keeps events for a limited time.</p>;
  return (
    <ul class="events" tabIndex={0} aria-label="Events">
      {events.map((event) => (
        <li key={event.metadata.name}>
          <span class="event-age muted"><Age at={eventTime(event)} /></span>
          <span class={event.type === 'Warning' ? 'reason warning' : 'reason'}>{words(event.reason)}</span>
          <span class="event-text muted" title={event.message}>{event.message}{(event.count ?? 1) > 1 && <span class="times"> ×{event.count}</span>}</span>
        </li>
      ))}
    </ul>
  );
}
