// Sorting of table rows.

export type Key = string | number | undefined;

export interface Order {
  column: string;
  descending: boolean;
}

/** Sort keys of names. A key is computed once, because a table compares each name many times. */
const naturalKeys = new Map<string, string>();
const MAX_KEYS = 50_000;

function naturalKey(name: string): string {
  let key = naturalKeys.get(name);
  if (key === undefined) {
    if (naturalKeys.size >= MAX_KEYS) naturalKeys.clear();
    key = name.toLowerCase().replace(/\d+/g, (digits) => digits.padStart(12, '0'));
    naturalKeys.set(name, key);
  }
  return key;
}

/** Compares names so that `mini-2` precedes `mini-10`. */
export function compareNames(a: string, b: string): number {
  const [first, second] = [naturalKey(a), naturalKey(b)];
  return first < second ? -1 : first > second ? 1 : 0;
}

/** Returns the rows in the order of their keys. Unknown keys are last in both directions. */
export function sorted<Row>(rows: readonly Row[], key: (row: Row) => Key, name: (row: Row) => string, descending: boolean): Row[] {
  const comparable = (value: Key) => (typeof value === 'string' ? naturalKey(value) : value);
  const keyed = rows.map((row) => ({ row, key: comparable(key(row)), name: naturalKey(name(row)) }));
  keyed.sort((a, b) => {
    if (a.key === undefined || b.key === undefined) {
      if (a.key !== b.key) return a.key === undefined ? 1 : -1;
    } else {
      const order = a.key < b.key ? -1 : a.key > b.key ? 1 : 0;
      if (order !== 0) return descending ? -order : order;
    }
    return a.name < b.name ? -1 : a.name > b.name ? 1 : 0;
  });
  return keyed.map((entry) => entry.row);
}

/** Returns the order after a click on a column's header. */
export function toggled(order: Order, column: string, descendingFirst: boolean): Order {
  if (order.column !== column) return { column, descending: descendingFirst };
  return { column, descending: !order.descending };
}
