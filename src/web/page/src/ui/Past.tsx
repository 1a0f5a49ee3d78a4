// Histories that the server has: of the control plane, and of Prometheus for longer periods.

import { useEffect, useState } from 'preact/hooks';
import { json } from '../api/http';
import type { History } from '../samples';
import { session } from '../session';
import { messageOf } from './Dialog';

/** Hours with their names. 0: the history of the control plane. */
const PERIODS: [number, string][] = [[0, '24 hours'], [168, '7 days'], [720, '30 days'], [2160, '90 days']];

/** Choice of the period, if the server queries a Prometheus. `own` names the history of the control plane. */
export function Period({ hours, own, onChange }: { hours: number; own?: string; onChange: (hours: number) => void }) {
  if (!session.value?.prometheus) return null;
  return (
    <select class="period" aria-label="Period" value={hours} onChange={(event) => onChange(Number(event.currentTarget.value))}>
      {PERIODS.map(([value, label]) => <option key={value} value={value}>{(!value && own) || label}</option>)}
    </select>
  );
}

export interface Past {
  history?: History;
  problem?: string;
}

/** Reads the history of an object, and reads it again when `version` changes. Without a path, there is none. */
export function usePast(path: string | undefined, version?: string): Past {
  const [past, setPast] = useState<Past>({});
  useEffect(() => {
    let current = true;
    setPast({});
    const show = (found: Past) => current && setPast(found);
    if (path) json<History>(`/proxy/history/${path}`).then((history) => show({ history }), (error: unknown) => show({ problem: messageOf(error) }));
    return () => {
      current = false;
    };
  }, [path, version]);
  return past;
}
