// Bars of a resource: in use, reserved, free.

export interface Segment {
  share: number;
  kind: 'used' | 'reserved' | 'over';
}

/** `used` and `reserved` are parts of `limit`; `used` is contained in `reserved`. */
export function UsageBar({ used, reserved, limit, label }: { used: number; reserved: number; limit?: number; label: string }) {
  const share = (value: number) => (limit && limit > 0 ? Math.min(100, Math.max(0, (100 * value) / limit)) : 0);
  const over = limit !== undefined && reserved > limit * 1.001;
  return (
    <span class={over ? 'bar over' : 'bar'} role="img" aria-label={label} title={label}>
      <i class="reserved" style={{ width: `${share(reserved)}%` }} />
      <i class="used" style={{ width: `${share(Math.min(used, reserved))}%` }} />
    </span>
  );
}

/** Legend of all usage bars. */
export function BarLegend() {
  return (
    <span class="legend">
      <span><i class="key used" />in use</span>
      <span><i class="key reserved" />reserved</span>
      <span><i class="key free" />free</span>
    </span>
  );
}
