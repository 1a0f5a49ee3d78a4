// Roofline of a Mac for decoding: bandwidth as a diagonal roof, models as points below it.

import { pictureOf, ticks } from '../fleet/roofline';
import type { FleetNode, ModelReplica } from '../api/kinds';
import { bandwidth, number, short } from '../format/text';
import { Empty } from './State';

/** Maximum width. A smaller screen gets a narrower drawing instead of smaller text. */
const MAX_WIDTH = 640;
const HEIGHT = 320;
const LEFT = 56;
const RIGHT = 14;
const TOP = 14;
const BOTTOM = 40;

export function RooflinePicture({ node, replicas }: { node: FleetNode; replicas: Iterable<ModelReplica> }) {
  const picture = pictureOf(node, replicas);
  if (!picture) {
    return <Empty title="No bandwidth is known">The agent has not measured this Mac, and its chip has no data sheet.</Empty>;
  }
  const { roofs, points, x, y } = picture;
  const width = Math.min(MAX_WIDTH, innerWidth - 40);
  const scale = (value: number, [low, high]: [number, number], from: number, to: number) =>
    from + ((Math.log(value) - Math.log(low)) / (Math.log(high) - Math.log(low))) * (to - from);
  const atX = (value: number) => scale(value, x, LEFT, width - RIGHT);
  const atY = (value: number) => scale(value, y, HEIGHT - BOTTOM, TOP);
  const roofLine = (bytesPerSecond: number) => `M${atX(x[0])} ${atY(bytesPerSecond / x[0])}L${atX(x[1])} ${atY(bytesPerSecond / x[1])}`;
  const gigabytes = (value: number) => short(value / 1e9);
  const summary = [
    ...roofs.map((roof) => `${roof.basis === 'Measured' ? 'measured' : 'nominal'} bandwidth ${bandwidth(roof.bytesPerSecond)}`),
    ...points.map((point) => `${point.name}: ${gigabytes(point.bytesPerStep)} GB per decode step`
      + (point.predicted ? `, predicted ${number(point.predicted.p50)} tokens/s` : '')
      + (point.measured === undefined ? '' : `, measured ${number(point.measured)} tokens/s`)),
  ].join('; ');
  const labels = placeLabels(points.map((point) => {
    const roof = roofs[0]!.bytesPerSecond / point.bytesPerStep;
    return { name: point.name, x: atX(point.bytesPerStep), y: atY(point.measured ?? point.predicted?.p50 ?? roof) };
  }), width);
  return (
    <figure class="roofline">
      <svg viewBox={`0 0 ${width} ${HEIGHT}`} role="img" aria-label={`Roofline: ${summary}`}>
        <clipPath id="plot-area"><rect x={LEFT} y={TOP} width={width - LEFT - RIGHT} height={HEIGHT - TOP - BOTTOM} /></clipPath>
        {ticks(x).map((value) => (
          <g key={value} class="tick">
            <line x1={atX(value)} x2={atX(value)} y1={TOP} y2={HEIGHT - BOTTOM} />
            <text x={atX(value)} y={HEIGHT - BOTTOM + 15} text-anchor="middle">{gigabytes(value)}</text>
          </g>
        ))}
        {ticks(y).map((value) => (
          <g key={value} class="tick">
            <line x1={LEFT} x2={width - RIGHT} y1={atY(value)} y2={atY(value)} />
            <text x={LEFT - 7} y={atY(value) + 3.5} text-anchor="end">{short(value)}</text>
          </g>
        ))}
        <text class="axis-title" x={(LEFT + width - RIGHT) / 2} y={HEIGHT - 6} text-anchor="middle">GB read per decode step</text>
        <text class="axis-title" x="12" y={(TOP + HEIGHT - BOTTOM) / 2} text-anchor="middle" transform={`rotate(-90 12 ${(TOP + HEIGHT - BOTTOM) / 2})`}>tokens/s of a stream</text>
        <g clip-path="url(#plot-area)">
          {roofs.map((roof) => <path key={roof.basis} class={`roof ${roof.basis === 'Measured' ? 'measured' : 'nominal'}`} d={roofLine(roof.bytesPerSecond)} />)}
        </g>
        {points.map((point, index) => {
          const px = atX(point.bytesPerStep);
          const roof = roofs[0]!;
          const label = labels[index]!;
          return (
            <g key={`${point.name}-${index}`} class="point">
              {point.predicted && <line class="interval" x1={px} x2={px} y1={atY(point.predicted.p90)} y2={atY(point.predicted.p10)} />}
              {point.predicted && <circle class="predicted" cx={px} cy={atY(point.predicted.p50)} r="4.5" />}
              {point.measured !== undefined && <circle class="measured" cx={px} cy={atY(point.measured)} r="4.5" />}
              {!point.predicted && <path class="stored" d={`M${px} ${atY(roof.bytesPerSecond / point.bytesPerStep) - 5}l5 5l-5 5l-5 -5z`} />}
              <text class="point-label" x={label.x} y={label.y} text-anchor={label.anchor}>{point.name}</text>
            </g>
          );
        })}
      </svg>
      <figcaption class="roofline-legend">
        {roofs.map((roof) => (
          <span key={roof.basis}><i class={`swatch roof-${roof.basis === 'Measured' ? 'measured' : 'nominal'}`} />{roof.basis === 'Measured' ? 'measured' : 'data sheet, not measured'}: {bandwidth(roof.bytesPerSecond)}</span>
        ))}
        {points.some((point) => point.measured !== undefined) && <span><i class="swatch dot-measured" />measured speed</span>}
        {points.some((point) => point.predicted) && <span><i class="swatch dot-predicted" />predicted, 10th to 90th percentile</span>}
        {points.some((point) => !point.predicted) && <span><i class="swatch dot-stored" />model on disk, at the roof</span>}
      </figcaption>
    </figure>
  );
}

interface Label {
  x: number;
  y: number;
  anchor: 'start' | 'end';
}

/** Places labels beside their points, at least 13 px apart. */
function placeLabels(points: { name: string; x: number; y: number }[], width: number): Label[] {
  const placed: { x: number; y: number }[] = [];
  const labels: Label[] = new Array(points.length);
  const indices = points.map((_, index) => index).sort((a, b) => points[a]!.y - points[b]!.y);
  for (const index of indices) {
    const point = points[index]!;
    const end = point.x > width * 0.72;
    let y = point.y + 4;
    for (const other of placed) {
      if (Math.abs(other.x - point.x) < 110 && y - other.y < 13) y = Math.max(y, other.y + 13);
    }
    placed.push({ x: point.x, y });
    labels[index] = { x: point.x + (end ? -10 : 10), y: Math.min(y, HEIGHT - BOTTOM - 4), anchor: end ? 'end' : 'start' };
  }
  return labels;
}
