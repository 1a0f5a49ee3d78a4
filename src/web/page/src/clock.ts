// Time of the page, once per second.

import { signal } from '@preact/signals';

/** Milliseconds since 1970, once per second. */
export const now = signal(Date.now());

export function startClock(): void {
  setInterval(() => {
    if (!document.hidden) now.value = Date.now();
  }, 1000);
}

/** Seconds since a time in RFC 3339. Never negative: clocks of machines differ. */
export function since(time: string | undefined | null): number | undefined {
  const at = time ? Date.parse(time) : NaN;
  return Number.isNaN(at) ? undefined : Math.max(0, (now.value - at) / 1000);
}
