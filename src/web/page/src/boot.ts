// Script in the document: sets the color scheme before the first paint, and loads the page after it, so that
// the paint does not wait for the page's code.

let stored: string | null = null;
try {
  stored = localStorage.getItem('rooflet-theme');
} catch {
  // A browser without storage forgets the choice.
}
document.documentElement.dataset.theme = stored === 'light' || stored === 'dark' ? stored : 'system';

// A file of the server, which the bundle of this script must not contain.
const path = '/page.js';
/** Time limit in milliseconds, for browsers that report no paint. */
const LATEST_MS = 300;
let started = false;
const start = (): void => {
  if (!started) void import(path);
  started = true;
};
if (document.hidden) {
  start();
} else {
  new PerformanceObserver(start).observe({ type: 'paint', buffered: true });
  setTimeout(start, LATEST_MS);
}
