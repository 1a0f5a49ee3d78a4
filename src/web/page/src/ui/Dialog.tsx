// Question before an action, with what it will do. The browser keeps the focus inside.

import type { ComponentChildren } from 'preact';
import { useEffect, useRef, useState } from 'preact/hooks';
import { Problem } from '../api/problem';

interface Props {
  title: string;
  confirm: string;
  danger?: boolean;
  disabled?: boolean;
  children: ComponentChildren;
  onConfirm: () => Promise<unknown>;
  onClose: () => void;
}

export function Dialog({ title, confirm, danger, disabled, children, onConfirm, onClose }: Props) {
  const dialog = useRef<HTMLDialogElement>(null);
  const [busy, setBusy] = useState(false);
  const [problem, setProblem] = useState<string>();
  useEffect(() => {
    const element = dialog.current;
    if (element && !element.open) element.showModal();
  }, []);
  const run = async (event: Event) => {
    event.preventDefault();
    setBusy(true);
    setProblem(undefined);
    try {
      await onConfirm();
      onClose();
    } catch (error) {
      setProblem(messageOf(error));
      setBusy(false);
    }
  };
  return (
    <dialog ref={dialog} class="dialog" aria-labelledby="dialog-title" onClose={onClose}>
      <form onSubmit={run}>
        <h2 id="dialog-title">{title}</h2>
        <div class="dialog-body">{children}</div>
        {problem && <p class="problem" role="alert">{problem}</p>}
        <div class="dialog-buttons">
          <button type="button" class="button" onClick={onClose}>Cancel</button>
          <button type="submit" class={danger ? 'button danger' : 'button primary'} disabled={busy || disabled}>{busy ? 'Sending…' : confirm}</button>
        </div>
      </form>
    </dialog>
  );
}

/** Returns what a failed action reports, with the next step for conflicts and missing rights. */
export function messageOf(error: unknown): string {
  if (error instanceof Problem) {
    if (error.kind === 'conflict') return `${error.message}. The object has changed in the meantime: check it, and try again.`;
    if (error.kind === 'forbidden') return `You may not do this: ${error.message}`;
    return error.message;
  }
  return error instanceof Error ? error.message : String(error);
}
