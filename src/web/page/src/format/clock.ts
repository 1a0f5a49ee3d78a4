// Difference between the clocks of the browser and the server. Pure.

/** Responses that took longer are ignored: a proxy may have kept them. */
const MAX_DURATION_MS = 2000;
/** Smaller differences are treated as none. Dates have a resolution of one second. */
export const TOLERANCE_MS = 5000;

/** Returns the milliseconds to add to the browser's clock, or undefined if the response does not show them. */
export function differenceMs(date: string | null, sentAt: number, receivedAt: number): number | undefined {
  const duration = receivedAt - sentAt;
  const at = Date.parse(date ?? '');
  if (Number.isNaN(at) || duration < 0 || duration > MAX_DURATION_MS) return undefined;
  const difference = Math.round(at + 500 - (sentAt + duration / 2));
  return Math.abs(difference) < TOLERANCE_MS ? 0 : difference;
}
