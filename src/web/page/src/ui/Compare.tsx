// Prediction beside measurement: interval from the 10th to the 90th percentile, and the measured value.

import type { Percentiles } from '../api/kinds';
import { number } from '../format/text';

export function Compare({ predicted, measured, unit }: { predicted?: Percentiles; measured?: number; unit: string }) {
  if (!predicted && measured === undefined) return null;
  const max = 1.08 * Math.max(predicted?.p90 ?? 0, measured ?? 0);
  const at = (value: number) => `${max > 0 ? (100 * value) / max : 0}%`;
  const text = [
    predicted && `predicted ${number(predicted.p50)} ${unit} (${number(predicted.p10)} to ${number(predicted.p90)})`,
    measured !== undefined && `measured ${number(measured)} ${unit}`,
  ].filter(Boolean).join(', ');
  return (
    <span class="compare" role="img" aria-label={text} title={text}>
      {predicted && <i class="interval" style={{ left: at(predicted.p10), width: at(predicted.p90 - predicted.p10) }} />}
      {predicted && <i class="median" style={{ left: at(predicted.p50) }} />}
      {measured !== undefined && <i class="measured" style={{ left: at(measured) }} />}
    </span>
  );
}

const BASES: Record<string, string> = {
  Nominal: 'from data sheet',
  Measured: 'from measured bandwidth',
  Calibrated: 'calibrated',
};

/** Basis of a prediction, in words. */
export function Basis({ of }: { of?: string }) {
  return of ? <span class={`basis ${of === 'Nominal' ? 'nominal' : ''}`}>{BASES[of] ?? of}</span> : null;
}
