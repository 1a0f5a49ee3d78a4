// Sortable table that renders only the rows in the window, and only rows that have changed.

import { Component, type ComponentChildren } from 'preact';
import { useLayoutEffect, useMemo, useRef, useState } from 'preact/hooks';
import { sorted, toggled, type Key, type Order } from '../format/order';

export interface Column<Row> {
  id: string;
  title: string;
  /** Unit or explanation under the title's cursor. */
  hint?: string;
  cell: (row: Row) => ComponentChildren;
  sort?: (row: Row) => Key;
  numeric?: boolean;
  /** 1: always shown, 2: from 760 px, 3: from 1080 px. */
  priority?: 1 | 2 | 3;
  /** Share of the width. */
  width: number;
}

interface Props<Row> {
  label: string;
  rows: readonly Row[];
  columns: Column<Row>[];
  name: (row: Row) => string;
  order: Order;
  link?: (row: Row) => string;
  rowHeight?: number;
  empty: ComponentChildren;
}

interface RowProps<Row> {
  row: Row;
  columns: Column<Row>[];
  link?: (row: Row) => string;
  index: number;
  height: number;
}

/** Returns the classes of a column's cells. */
function classes<Row>(column: Column<Row>): string {
  return `p${column.priority ?? 1}${column.numeric ? ' numeric' : ''}`;
}

/** Row that is rendered again only if its object or its place has changed. */
class TableRow<Row> extends Component<RowProps<Row>> {
  override shouldComponentUpdate(next: RowProps<Row>): boolean {
    return next.row !== this.props.row || next.index !== this.props.index || next.columns !== this.props.columns;
  }

  override render({ row, columns, link, index, height }: RowProps<Row>) {
    return (
      <tr aria-rowindex={index + 2} style={{ height: `${height}px` }}>
        {columns.map((entry, at) => (
          <td key={entry.id} class={classes(entry)}>
            {at === 0 && link ? <a class="row-link" href={link(row)}>{entry.cell(row)}</a> : entry.cell(row)}
          </td>
        ))}
      </tr>
    );
  }
}

const OVERSCAN = 8;
/** Tables with fewer rows are rendered completely. */
const VIRTUAL_FROM = 80;

export function Table<Row>({ label, rows, columns, name, order: initial, link, rowHeight = 48, empty }: Props<Row>) {
  const [order, setOrder] = useState<Order>(initial);
  const body = useRef<HTMLTableSectionElement>(null);
  const virtual = rows.length >= VIRTUAL_FROM;
  const [first, setFirst] = useState(0);
  const [shown, setShown] = useState(40);

  useLayoutEffect(() => {
    if (!virtual) return undefined;
    const update = () => {
      const top = body.current?.getBoundingClientRect().top ?? 0;
      const start = Math.max(0, Math.floor(-top / rowHeight) - OVERSCAN);
      setFirst(start - (start % 4));
      setShown(Math.ceil(window.innerHeight / rowHeight) + 2 * OVERSCAN + 4);
    };
    update();
    window.addEventListener('scroll', update, { passive: true });
    window.addEventListener('resize', update);
    return () => {
      window.removeEventListener('scroll', update);
      window.removeEventListener('resize', update);
    };
  }, [virtual, rowHeight]);

  const column = columns.find((entry) => entry.id === order.column) ?? columns[0]!;
  const ordered = useMemo(
    () => sorted(rows, column.sort ?? name, name, order.descending),
    [rows, order.column, order.descending],
  );
  if (rows.length === 0) return <>{empty}</>;

  const start = virtual ? Math.min(first, Math.max(0, ordered.length - shown)) : 0;
  const end = virtual ? Math.min(ordered.length, start + shown) : ordered.length;
  const gap = (count: number) => count > 0 && <tr class="gap" aria-hidden="true"><td style={{ height: `${count * rowHeight}px` }} /></tr>;
  return (
    <div class="table-frame">
      <table class="table" aria-label={label} aria-rowcount={ordered.length + 1}>
        <thead>
          <tr aria-rowindex={1}>
            {columns.map((entry) => (
              <th
                key={entry.id}
                scope="col"
                class={classes(entry)}
                style={{ width: `${entry.width}%` }}
                title={entry.hint}
                aria-sort={entry.id !== order.column ? undefined : order.descending ? 'descending' : 'ascending'}
              >
                {entry.sort ? (
                  <button type="button" class="sort" onClick={() => setOrder(toggled(order, entry.id, entry.numeric === true))}>
                    {entry.title}
                    <span class="arrow" aria-hidden="true">{entry.id === order.column ? (order.descending ? '↓' : '↑') : ''}</span>
                  </button>
                ) : entry.title}
              </th>
            ))}
          </tr>
        </thead>
        <tbody ref={body}>
          {gap(start)}
          {ordered.slice(start, end).map((row, index) => (
            <TableRow<Row> key={name(row)} row={row} columns={columns} link={link} index={start + index} height={rowHeight} />
          ))}
          {gap(ordered.length - end)}
        </tbody>
      </table>
    </div>
  );
}
