// Events of all objects, newest first.

import { useMemo, useState } from 'preact/hooks';
import { eventTime, keyOf, type KubeEvent } from '../api/kinds';
import { count, plural, words } from '../format/text';
import { href } from '../router';
import { events } from '../store';
import { Age, Empty, Loaded } from '../ui/State';
import { Table, type Column } from '../ui/Table';
import { useTitle, useWatch } from '../ui/use';

/** Returns the address of the view of an event's object, if there is one. */
function objectHref({ involvedObject: { kind, name, namespace = 'default' } }: KubeEvent): string | undefined {
  const views: Record<string, string> = { ModelDeployment: 'deployments', ModelReplica: 'replicas', PerformanceClaim: 'claims', CapacityPlan: 'plans' };
  if (kind === 'FleetNode') return href('macs', name);
  const view = views[kind];
  return view && href(view, namespace, name);
}

const COLUMNS: Column<KubeEvent>[] = [
  { id: 'time', title: 'Last', width: 10, sort: (event) => Date.parse(eventTime(event) ?? ''), cell: (event) => <Age at={eventTime(event)} /> },
  {
    id: 'reason', title: 'Reason', width: 20, sort: (event) => event.reason,
    cell: (event) => <><span class={event.type === 'Warning' ? 'reason warning' : 'reason'}>{words(event.reason)}</span><span class="cell-sub narrow">{event.message}</span></>,
  },
  {
    id: 'object', title: 'Object', width: 22, sort: (event) => event.involvedObject.name,
    cell: (event) => {
      const target = objectHref(event);
      return <><span class="cell-main">{target ? <a href={target}>{event.involvedObject.name}</a> : event.involvedObject.name}</span><span class="cell-sub">{event.involvedObject.kind}</span></>;
    },
  },
  { id: 'message', title: 'Message', width: 40, priority: 2, cell: (event) => <span class="two-lines" title={event.message}>{event.message}</span> },
  { id: 'count', title: 'Count', width: 8, numeric: true, priority: 3, sort: (event) => event.count ?? 1, cell: (event) => count(event.count ?? event.series?.count ?? 1) },
];

export function Events() {
  useTitle('Events');
  useWatch(events);
  const [text, setText] = useState('');
  const [warnings, setWarnings] = useState(false);
  const current = events.objects.value;
  const all = useMemo(() => [...current.items.values()], [current]);
  const shown = useMemo(
    () => all.filter((event) => (!warnings || event.type === 'Warning')
      && [event.reason, event.involvedObject.kind, event.involvedObject.name, event.message].join(' ').toLowerCase().includes(text.toLowerCase())),
    [all, text, warnings],
  );
  return (
    <>
      <div class="view-head"><h1>Events</h1></div>
      <Loaded of={events}>
        {all.length > 0 && (
          <div class="toolbar">
            <input class="search" type="search" placeholder="Filter by reason, object, message" aria-label="Filter events" value={text} onInput={(event) => setText(event.currentTarget.value)} />
            <div class="segments" role="group" aria-label="Type">
              <button type="button" aria-pressed={!warnings} onClick={() => setWarnings(false)}>All <span class="of">{count(all.length)}</span></button>
              <button type="button" aria-pressed={warnings} onClick={() => setWarnings(true)}>Warnings <span class="of">{count(all.filter((event) => event.type === 'Warning').length)}</span></button>
            </div>
            {all.length >= (events.bound?.max ?? Infinity) && <span class="muted">the newest events only</span>}
          </div>
        )}
        <Table label="Events" rows={shown} columns={COLUMNS} name={(event) => keyOf(event.metadata)} order={{ column: 'time', descending: true }} rowHeight={52} empty={all.length === 0 ? <Empty title="No events" /> : <Empty title="No event matches">Change the filter to see {plural(all.length, 'event')}.</Empty>} />
      </Loaded>
    </>
  );
}
