// Light, dark, or as the system prefers. Stored as an attribute of the document, and locally. boot.ts sets the
// attribute.

import { signal } from '@preact/signals';

export type Theme = 'system' | 'light' | 'dark';

export const theme = signal<Theme>((document.documentElement.dataset.theme as Theme | undefined) ?? 'system');

export function setTheme(next: Theme): void {
  theme.value = next;
  document.documentElement.dataset.theme = next;
  try {
    localStorage.setItem('rooflet-theme', next);
  } catch {
    // A browser without storage forgets the choice.
  }
}
