// Time of the page, by the server's clock, once per second.

import { signal } from '@preact/signals';
import { differenceMs, TOLERANCE_MS } from './format/clock';

/** Difference of the clocks from which the page warns. */
const WARN_MS = 60_000;

let difference = 0;

/** Milliseconds since 1970 by the server's clock, once per second. */
export const now = signal(Date.now());
/** Milliseconds by which this computer's clock is ahead of the server's. 0 for less than a minute. */
export const ahead = signal(0);

/** Milliseconds since 1970 by the server's clock. */
export function serverNow(): number {
  return Date.now() + difference;
}

/** Compares the clocks. `date` is the header of a response to a request that was sent at `sentAt`. */
export function observeDate(date: string | null, sentAt: number): void {
  const found = differenceMs(date, sentAt, Date.now());
  // Dates have a resolution of one second, so that the difference varies.
  if (found === undefined || Math.abs(found - difference) < TOLERANCE_MS) return;
  difference = found;
  now.value = serverNow();
  ahead.value = Math.abs(found) < WARN_MS ? 0 : -found;
}

export function startClock(): void {
  setInterval(() => {
    if (!document.hidden) now.value = serverNow();
  }, 1000);
}

/** Seconds since a time in RFC 3339. Never negative: clocks of machines differ. */
export function since(time: string | undefined | null): number | undefined {
  const at = time ? Date.parse(time) : NaN;
  return Number.isNaN(at) ? undefined : Math.max(0, (now.value - at) / 1000);
}
