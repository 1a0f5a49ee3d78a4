// Numbers in the page's text, in the answers of kubectl and in metrics. Written without the page's
// code, so that an error there is not repeated here.
import assert from 'node:assert/strict';

/** Returns the cells of a table by the title of their column, one object per row. */
export function table(page, label) {
  return page.evaluate((wanted) => {
    const found = [...document.querySelectorAll('table')].find((element) => element.getAttribute('aria-label') === wanted);
    if (!found) return undefined;
    const titles = [...found.tHead.rows[0].cells].map((cell) => cell.textContent.replace(/[↓↑]$/, '').trim());
    return [...found.tBodies[0].rows].map((row) => Object.fromEntries([...row.cells].map((cell, index) => [titles[index] ?? '', cell.innerText.trim()])));
  }, label);
}

/** Returns the texts of all `dt` with their `dd`, within the panel of this title or the whole page. */
export function figures(page, panel) {
  return page.evaluate((title) => {
    const panels = [...document.querySelectorAll('section.panel')];
    const root = title === undefined ? document : panels.find((element) => element.querySelector('h2')?.textContent === title);
    return Object.fromEntries([...(root?.querySelectorAll('dl > div') ?? [])].map((pair) => [pair.querySelector('dt').textContent, pair.querySelector('dd').innerText.trim()]));
  }, panel);
}

/** Returns the numbers of a text with their decimal places, such as 1,240.5. */
function numbersOf(text) {
  return [...(text ?? '').matchAll(/\d[\d,]*(?:\.\d+)?/g)].map(([digits]) => ({ value: Number(digits.replaceAll(',', '')), decimals: digits.split('.')[1]?.length ?? 0 }));
}

/** Asserts that the number at this place of the text is the expected one, rounded to its decimal places. */
export function shows(what, text, index, expected) {
  if (expected === undefined || Number.isNaN(expected)) return assert.match(text ?? '', /–/, `${what}: "${text}" although nothing is known`);
  const found = numbersOf(text)[index];
  assert.ok(found && Math.abs(found.value - expected) <= 0.5001 * 10 ** -found.decimals, `${what}: "${text}" has not ${expected} as number ${index + 1}`);
  return undefined;
}

/** Asserts that the time at this place of the text, such as `127 ms`, is the expected one in seconds. */
export function showsTime(what, text, index, expected) {
  if (expected === undefined || Number.isNaN(expected)) return assert.match(text ?? '', /–/, `${what}: "${text}" although nothing is known`);
  const [, digits, unit] = [...(text ?? '').matchAll(/([\d,.]+) (ms|s)\b/g)][index] ?? [];
  const unitSeconds = unit === 'ms' ? 0.001 : 1;
  const precision = 10 ** -(digits?.split('.')[1]?.length ?? 0);
  const found = Number(digits?.replaceAll(',', ''));
  assert.ok(Math.abs(found - expected / unitSeconds) <= 0.5001 * precision, `${what}: "${text}" has not ${expected} s as time ${index + 1}`);
  return undefined;
}

const BINARY = { Ki: 2 ** 10, Mi: 2 ** 20, Gi: 2 ** 30, Ti: 2 ** 40 };

/** Bytes of a quantity of Kubernetes. */
export function bytesOf(quantity) {
  if (quantity === undefined) return undefined;
  const [, digits, suffix] = /^([\d.]+)(Ki|Mi|Gi|Ti)?$/.exec(quantity);
  return Number(digits) * (BINARY[suffix] ?? 1);
}

/** Seconds of a Go duration with one unit, such as `798ms`. */
export function durationOf(text) {
  const parts = /^([\d.]+)(ms|s|m)$/.exec(text ?? '');
  return parts ? Number(parts[1]) * { ms: 0.001, s: 1, m: 60 }[parts[2]] : undefined;
}

/** Samples of a text in Prometheus' format: `of(name, labels)` lists the values whose labels match. */
export function metrics(text) {
  const samples = text.split('\n').filter((line) => line && !line.startsWith('#')).map((line) => {
    const [, name, inside = '', value] = /^(\w[\w:]*)(?:\{(.*)\})? (\S+)$/.exec(line);
    return { name, labels: Object.fromEntries([...inside.matchAll(/(\w+)="([^"]*)"/g)].map(([, key, content]) => [key, content])), value: value === '+Inf' ? Infinity : Number(value) };
  });
  const matching = (name, labels) => samples.filter((sample) => sample.name === name && Object.entries(labels).every(([key, content]) => sample.labels[key] === content));
  return {
    all: (name, labels = {}) => matching(name, labels),
    one: (name, labels = {}) => matching(name, labels)[0]?.value,
    sum: (name, labels = {}) => matching(name, labels).reduce((sum, { value }) => sum + value, 0),
    /** Quantile of a histogram, linear in its bucket, as PromQL's histogram_quantile. */
    quantile(share, name) {
      const counts = new Map();
      for (const { labels, value } of matching(`${name}_bucket`, {})) {
        const bound = labels.le === '+Inf' ? Infinity : Number(labels.le);
        counts.set(bound, (counts.get(bound) ?? 0) + value);
      }
      const ordered = [...counts].sort(([a], [b]) => a - b);
      const rank = share * (ordered.at(-1)?.[1] ?? 0);
      if (rank === 0) return undefined;
      const at = ordered.findIndex(([, count]) => count >= rank);
      const [below, countBelow] = at > 0 ? ordered[at - 1] : [0, 0];
      const [bound, count] = ordered[at];
      return bound === Infinity ? below : below + ((bound - below) * (rank - countBelow)) / (count - countBelow);
    },
  };
}
