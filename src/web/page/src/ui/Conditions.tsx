// Conditions of an object as a list.

import type { Condition } from '../api/kinds';
import { words } from '../format/text';
import { Age } from './State';

/** Conditions for which True is a problem. */
const BAD_IF_TRUE = /Pressure$|^Degraded$|^OnBattery$|^LidClosed$|^Memory(Reduced)$|Leaked$|^RebootRequired$|^LowPowerMode$|^VersionSkew$|^DisruptionTarget$|^NameShared$|^Stalled$|^ScalingLimited$|^QuietHours$|^UserPresent$|Unused$/;

export function Conditions({ of }: { of?: Condition[] }) {
  if (!of || of.length === 0) return <p class="muted">No conditions are reported yet.</p>;
  return (
    <dl class="conditions">
      {of.map((entry) => {
        const inverted = BAD_IF_TRUE.test(entry.type);
        const level = entry.status === 'Unknown' ? 'idle' : (entry.status === 'True') !== inverted ? 'good' : inverted || entry.type === 'ProbeFresh' ? 'warn' : 'bad';
        return (
          <div key={entry.type} class="condition">
            <dt><span class={`state ${level}`}><i class="dot" aria-hidden="true" />{entry.type}</span></dt>
            <dd class="condition-status">{entry.status}</dd>
            <dd class="condition-text" title={entry.message}><span class="reason">{words(entry.reason)}</span>{entry.message && <span class="muted"> {entry.message}</span>}</dd>
            <dd class="condition-age muted"><Age at={entry.lastTransitionTime} /></dd>
          </div>
        );
      })}
    </dl>
  );
}
