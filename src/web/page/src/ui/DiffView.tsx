// Line differences, with three unchanged lines around each change.

import { hunks, type DiffLine } from '../format/diff';

const MARKS = { same: ' ', removed: '−', added: '+' } as const;

export function DiffView({ lines }: { lines: DiffLine[] }) {
  const shown = hunks(lines);
  if (shown.length === 0) return <p class="muted">No difference.</p>;
  return (
    <div class="diff" role="group" aria-label="Differences" tabIndex={0}>
      {shown.map((line, index) => line === null
        ? <div key={index} class="diff-gap">⋯</div>
        : <div key={index} class={`diff-line ${line.kind}`}><span aria-hidden="true">{MARKS[line.kind]}</span>{line.kind !== 'same' && <span class="hidden">{line.kind}: </span>}{line.text}</div>)}
    </div>
  );
}
