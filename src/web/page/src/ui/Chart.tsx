// Time series with uPlot, in the colors of the theme.

import { useEffect, useRef } from 'preact/hooks';
import uPlot from 'uplot';
import { theme } from '../theme';
import { UNKNOWN } from '../format/text';

export interface Line {
  label: string;
  values: (number | null)[];
  look: 'measured' | 'predicted' | 'limit';
}

interface Props {
  title: string;
  times: number[];
  lines: Line[];
  format: (value: number) => string;
  /** Format of the marks of the axis. Default: `format`. */
  mark?: (value: number) => string;
  /** Shows each measured value as a point. */
  points?: boolean;
}

const HEIGHT = 168;
const MIN_SPAN_SECONDS = 60;

/** Returns the local time, with seconds if less than ten minutes are shown, and the date if days are shown. */
function clockTimes(times: number[]): string[] {
  const span = (times[times.length - 1] ?? 0) - (times[0] ?? 0);
  return times.map((time) => {
    const at = new Date(time * 1000);
    return span > 172_800 ? at.toLocaleDateString('en-US', { month: 'short', day: 'numeric' }) : at.toTimeString().slice(0, span < 600 ? 8 : 5);
  });
}

/** Starts a short series with an empty value, so that the axis covers a minute. */
function padded(times: number[], lines: Line[]): uPlot.AlignedData {
  const start = (times[times.length - 1] ?? 0) - MIN_SPAN_SECONDS;
  const short = times[0] === undefined || times[0] > start;
  return (short ? [[start, ...times], ...lines.map((line) => [null, ...line.values])] : [times, ...lines.map((line) => line.values)]) as uPlot.AlignedData;
}

export function Chart({ title, times, lines, format, mark = format, points }: Props) {
  const frame = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | undefined>(undefined);
  const shape = lines.map((line) => line.label).join('|');
  const scheme = theme.value;
  useEffect(() => {
    const element = frame.current;
    if (!element) return undefined;
    const color = (name: string) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
    const create = () => {
      plot.current?.destroy();
      const stroke = { measured: color('--accent'), predicted: color('--muted'), limit: color('--bad') };
      const axis = { stroke: color('--muted'), grid: { stroke: color('--line'), width: 1 }, ticks: { show: false }, font: '11px system-ui' };
      plot.current = new uPlot(
        {
          width: element.clientWidth, height: HEIGHT, padding: [8, 10, 0, 0], legend: { show: false },
          cursor: { show: true, drag: { x: false, y: false }, points: { size: 6 } },
          scales: { y: { range: (_, low, high) => [Math.min(0, low), (high || 1) * 1.12] } },
          axes: [{ ...axis, size: 26, space: 78, values: (_, times) => clockTimes(times) }, { ...axis, size: 52, space: 34, values: (_, values) => values.map((value) => mark(value)) }],
          series: [
            {},
            ...lines.map((line) => ({
              label: line.label, stroke: stroke[line.look], width: line.look === 'measured' ? 2 : 1.25,
              dash: line.look === 'measured' ? undefined : line.look === 'limit' ? [2, 3] : [6, 4],
              points: { show: times.length < 3 || (points && line.look === 'measured') }, spanGaps: false,
            })),
          ],
        },
        padded(times, lines),
        element,
      );
      plot.current.root.setAttribute('aria-hidden', 'true');
    };
    create();
    const media = matchMedia('(prefers-color-scheme: dark)');
    media.addEventListener('change', create);
    const observer = new ResizeObserver(() => plot.current?.setSize({ width: element.clientWidth, height: HEIGHT }));
    observer.observe(element);
    return () => {
      observer.disconnect();
      media.removeEventListener('change', create);
      plot.current?.destroy();
      plot.current = undefined;
    };
  }, [shape, scheme]);
  useEffect(() => {
    plot.current?.setData(padded(times, lines));
  }, [times.length, times[0], times[times.length - 1]]);
  const last = (line: Line) => line.values[line.values.length - 1] ?? undefined;
  return (
    <figure class="chart">
      <figcaption>
        <span class="chart-title">{title}</span>
        {lines.map((line) => (
          <span key={line.label} class={`chart-key ${line.look}`}>
            <i aria-hidden="true" />{line.label} <b>{last(line) === undefined ? UNKNOWN : format(last(line)!)}</b>
          </span>
        ))}
      </figcaption>
      <div ref={frame} class="chart-frame" />
    </figure>
  );
}
