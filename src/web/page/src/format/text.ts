// Figures and times as text. An unknown figure is an en dash.

export const UNKNOWN = '–';

/** Returns the number with three significant digits, such as `36.5`, `52.0`, `0.098` and `1,240`. */
export function number(value: number | undefined): string {
  return rounded(value, true);
}

/** Returns the number as `number` does, without zeros at the end: a factor, or a mark of an axis. */
export function short(value: number | undefined): string {
  return rounded(value, false);
}

function rounded(value: number | undefined, zeros: boolean): string {
  if (value === undefined || !Number.isFinite(value)) return UNKNOWN;
  const size = Math.abs(value);
  const digits = size >= 99.95 || size === 0 ? 0 : size >= 9.995 ? 1 : size >= 1 ? 2 : 3;
  return value.toLocaleString('en-US', { maximumFractionDigits: digits, minimumFractionDigits: zeros ? digits : 0 });
}

/** Returns an integer with thousands separators. */
export function count(value: number | undefined): string {
  return value === undefined ? UNKNOWN : Math.round(value).toLocaleString('en-US');
}

/** Returns memory in GiB, as rooflet's own messages do, such as `9.6 GiB`. */
export function bytes(value: number | undefined): string {
  if (value === undefined || !Number.isFinite(value)) return UNKNOWN;
  const steps: [number, string][] = [[2 ** 40, 'TiB'], [2 ** 30, 'GiB'], [2 ** 20, 'MiB'], [2 ** 10, 'KiB']];
  const size = Math.abs(value);
  for (const [step, unit] of steps) {
    if (size >= step) return `${(value / step).toFixed(1)} ${unit}`;
  }
  return `${Math.round(value)} B`;
}

/** Returns GiB without the unit, for columns whose header has the unit. */
export function gib(value: number | undefined): string {
  return value === undefined ? UNKNOWN : (value / 2 ** 30).toFixed(1);
}

/** Returns a bandwidth, such as `273 GB/s`. */
export function bandwidth(value: number | undefined): string {
  if (value === undefined || !Number.isFinite(value)) return UNKNOWN;
  return `${short(value / 1e9)} GB/s`;
}

/** Returns a share in percent, such as `45 %`. */
export function percent(value: number | undefined): string {
  return value === undefined || !Number.isFinite(value) ? UNKNOWN : `${Math.round(value)} %`;
}

/** Returns a short time such as `127 ms` or `2.21 s`. */
export function seconds(value: number | undefined): string {
  if (value === undefined || !Number.isFinite(value)) return UNKNOWN;
  if (value < 1) return `${short(value * 1000)} ms`;
  if (value < 120) return `${short(value)} s`;
  return age(value);
}

/** Returns the elapsed time as kubectl does, such as `45s`, `3m20s`, `5h` and `12d`. */
export function age(elapsed: number | undefined): string {
  if (elapsed === undefined || !Number.isFinite(elapsed)) return UNKNOWN;
  const total = Math.max(0, Math.floor(elapsed));
  const [s, m, h, d] = [total % 60, Math.floor(total / 60) % 60, Math.floor(total / 3600) % 24, Math.floor(total / 86400)];
  if (total < 120) return `${total}s`;
  if (total < 600) return s ? `${Math.floor(total / 60)}m${s}s` : `${Math.floor(total / 60)}m`;
  if (total < 3 * 3600) return `${Math.floor(total / 60)}m`;
  if (total < 8 * 3600) return m ? `${Math.floor(total / 3600)}h${m}m` : `${Math.floor(total / 3600)}h`;
  if (total < 48 * 3600) return `${Math.floor(total / 3600)}h`;
  if (d < 8) return h ? `${d}d${h}h` : `${d}d`;
  return `${d}d`;
}

/** Returns the singular or plural with its number: `1 replica`, `2 replicas`. */
export function plural(amount: number, noun: string): string {
  return `${count(amount)} ${noun}${amount === 1 ? '' : 's'}`;
}

/** Splits a CamelCase reason into words: `ObjectiveOutOfReach` becomes `Objective out of reach`. */
export function words(reason: string): string {
  const split = reason.replace(/([a-z0-9])([A-Z])/g, '$1 $2');
  return split.charAt(0) + split.slice(1).replace(/ ([A-Z])(?=[a-z])/g, (_, letter: string) => ` ${letter.toLowerCase()}`);
}
