// Quantiles of times, one row per histogram.

import { quantile, type Buckets } from '../fleet/metrics';
import { seconds } from '../format/text';

export function Quantiles({ label, of }: { label: string; of: [string, Buckets][] }) {
  return (
    <table class="sum wide-sum" aria-label={label}>
      <thead><tr><th scope="col"><span class="hidden">Time</span></th><th scope="col">p50</th><th scope="col">p95</th><th scope="col">p99</th></tr></thead>
      <tbody>
        {of.map(([name, counts]) => (
          <tr key={name}><th scope="row">{name}</th>{[0.5, 0.95, 0.99].map((share) => <td key={share}>{seconds(quantile(counts, share))}</td>)}</tr>
        ))}
      </tbody>
    </table>
  );
}
