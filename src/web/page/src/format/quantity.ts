// Kubernetes quantities and Go durations.

const SUFFIXES: Record<string, number> = {
  '': 1, n: 1e-9, u: 1e-6, m: 1e-3, k: 1e3, M: 1e6, G: 1e9, T: 1e12, P: 1e15, E: 1e18,
  Ki: 2 ** 10, Mi: 2 ** 20, Gi: 2 ** 30, Ti: 2 ** 40, Pi: 2 ** 50, Ei: 2 ** 60,
};

/** Returns the value of a quantity such as `16Gi`, or undefined if the text is not a quantity. */
export function parseQuantity(text: string | number | undefined): number | undefined {
  if (typeof text === 'number') return Number.isFinite(text) ? text : undefined;
  if (text === undefined) return undefined;
  const parts = /^([+-]?(?:\d+\.?\d*|\.\d+))(?:[eE]([+-]?\d+)|([numkMGTPE]|[KMGTPE]i)?)$/.exec(text);
  if (!parts) return undefined;
  const exponent = parts[2] === undefined ? 1 : 10 ** Number(parts[2]);
  return Number(parts[1]) * exponent * (SUFFIXES[parts[3] ?? ''] ?? 1);
}

const UNITS: Record<string, number> = {
  ns: 1e-9, us: 1e-6, 'µs': 1e-6, ms: 1e-3, s: 1, m: 60, h: 3600,
};

/** Returns the seconds of a Go duration such as `1m30s`, or undefined if the text is not one. */
export function parseDuration(text: string | undefined): number | undefined {
  if (!text || !/^(\d+(\.\d+)?(ns|us|µs|ms|s|m|h))+$/.test(text)) return undefined;
  let seconds = 0;
  for (const [, value, unit] of text.matchAll(/(\d+(?:\.\d+)?)(ns|us|µs|ms|s|m|h)/g)) {
    seconds += Number(value) * (UNITS[unit ?? ''] ?? 0);
  }
  return seconds;
}

/** Predicted and measured figure. */
export interface Pair {
  predicted?: number;
  measured?: number;
}

/** Splits a text such as `36.5/-` or `798ms/127ms` in the status of a ModelDeployment. */
export function parsePair(text: string | undefined): Pair {
  const [predicted, measured] = (text ?? '').split('/');
  const value = (part: string | undefined) =>
    part === undefined || part === '' || part === '-' ? undefined : (parseDuration(part) ?? parseQuantity(part));
  return { predicted: value(predicted), measured: value(measured) };
}
