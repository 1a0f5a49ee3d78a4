// Light, dark, or as the system prefers. Stored as an attribute of the document and locally.

import { signal } from '@preact/signals';

export type Theme = 'system' | 'light' | 'dark';
const KEY = 'rooflet-theme';

export const theme = signal<Theme>('system');

export function setTheme(next: Theme): void {
  theme.value = next;
  document.documentElement.dataset.theme = next;
  try {
    localStorage.setItem(KEY, next);
  } catch {
    // A browser without storage forgets the choice.
  }
}

export function loadTheme(): void {
  let stored: string | null = null;
  try {
    stored = localStorage.getItem(KEY);
  } catch {
    stored = null;
  }
  setTheme(stored === 'light' || stored === 'dark' ? stored : 'system');
}
