// Requests of one model in its workers: times, results and prefix hits.

import { useEffect, useState } from 'preact/hooks';
import { request } from '../api/http';
import { buckets, parseMetrics, total, totals, type Sample } from '../fleet/metrics';
import { count, percent, plural, UNKNOWN } from '../format/text';
import { deployments, replicas, replicasOf } from '../store';
import { messageOf } from '../ui/Dialog';
import { Columns, Facts, Panel } from '../ui/Panel';
import { Quantiles } from '../ui/Quantiles';

const INTERVAL_MS = 5000;
/** Workers that are read, so that a large deployment needs few requests. */
const MAX_WORKERS = 32;
const of = (name: string) => `rooflet_worker_${name}`;

interface Workers {
  deployment: string;
  samples: Sample[];
  read: number;
  all: number;
  problem?: string;
}

export function Engine() {
  const names = [...deployments.objects.value.items.keys()].sort();
  const [chosen, setChosen] = useState('');
  const deployment = names.includes(chosen) ? chosen : (names[0] ?? '');
  const workers = useWorkers(deployment);
  if (!deployment) return null;
  const known = workers?.deployment === deployment ? workers : undefined;
  return (
    <Panel
      title="Engine"
      aside={<select aria-label="Deployment" value={deployment} onChange={(event) => setChosen(event.currentTarget.value)}>
        {names.map((name) => <option key={name} value={name}>{name.replace(/^default\//, '')}</option>)}
      </select>}
    >
      {!known ? <p class="muted">Loading…</p> : known.read === 0 ? <p class="muted">{known.all === 0 ? 'No replica is ready.' : `No worker has metrics; a simulated Mac has no engine. Last problem: ${known.problem ?? 'none'}.`}</p> : <Figures of={known} />}
    </Panel>
  );
}

function Figures({ of: { samples, read, all } }: { of: Workers }) {
  const sum = (name: string) => total(samples, of(name));
  const [queried, hits] = [sum('prefix_cache_queried_tokens_total'), sum('prefix_cache_hit_tokens_total')];
  return (
    <>
      <Columns
        main={<Quantiles
          label="Times in the engine"
          of={[['To first token', buckets(samples, of('time_to_first_token_seconds'))], ['Between tokens', buckets(samples, of('inter_token_latency_seconds'))], ['Whole request', buckets(samples, of('request_duration_seconds'))]]}
        />}
        side={<Facts
          of={[
            ['Running', count(sum('running_requests'))],
            ['Queued', count(sum('queued_requests'))],
            ['Prefix hits', queried ? `${percent((100 * (hits ?? 0)) / queried)} of ${count(queried)} prompt tokens` : UNKNOWN],
            ['Ends', [...totals(samples, of('requests_total'), ({ outcome }) => outcome ?? '')].filter(([, amount]) => amount > 0).map(([outcome, amount]) => `${count(amount)} ${outcome}`).join(', ') || UNKNOWN],
          ]}
        />}
      />
      <p class="note muted">Since the start of each worker; {read} of {plural(all, 'replica')} reported.</p>
    </>
  );
}

/** Reads the metrics of the deployment's workers while the view is shown. */
function useWorkers(deployment: string): Workers | undefined {
  const [workers, setWorkers] = useState<Workers>();
  const known = replicas.objects.value.items.size > 0;
  useEffect(() => {
    const stop = new AbortController();
    const read = async () => {
      const ready = [...replicasOf(deployment).values()].filter(({ status }) => status?.phase === 'Ready');
      const answers = await Promise.allSettled(ready.slice(0, MAX_WORKERS).map(async ({ metadata: { namespace = 'default', name } }) => {
        const response = await request(`/proxy/metrics/replicas/${encodeURIComponent(namespace)}/${encodeURIComponent(name)}`, { signal: stop.signal });
        return parseMetrics(await response.text());
      }));
      if (stop.signal.aborted) return;
      const found = answers.flatMap((answer) => (answer.status === 'fulfilled' ? [answer.value] : []));
      const failed = answers.find((answer) => answer.status === 'rejected');
      setWorkers({ deployment, samples: found.flat(), read: found.length, all: ready.length, problem: failed && messageOf(failed.reason) });
    };
    void read();
    const timer = setInterval(() => !document.hidden && void read(), INTERVAL_MS);
    return () => {
      stop.abort();
      clearInterval(timer);
    };
  }, [deployment, known]);
  return workers;
}
