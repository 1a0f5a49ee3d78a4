// The view that the address selects: `#/macs/mini-1`.

import { computed, signal } from '@preact/signals';

/** Returns the fragment of the address. A sign-in code in it is not a view. */
const fragment = () => (location.hash.startsWith('#code=') ? '' : location.hash);

const hash = signal(fragment());
window.addEventListener('hashchange', () => {
  hash.value = fragment();
});

/** Parts of the path, decoded. */
export const route = computed<string[]>(() => {
  const path = hash.value.replace(/^#\/?/, '').split('?')[0] ?? '';
  return path.split('/').filter(Boolean).map((part) => {
    try {
      return decodeURIComponent(part);
    } catch {
      return part;
    }
  });
});

export function href(...parts: string[]): string {
  return `#/${parts.map(encodeURIComponent).join('/')}`;
}

export function go(...parts: string[]): void {
  location.hash = href(...parts);
}
