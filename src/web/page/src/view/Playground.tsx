// Chat with a served model, with the figures of each answer.

import { useEffect, useRef, useState } from 'preact/hooks';
import { json, lines, request } from '../api/http';
import { Problem } from '../api/problem';
import { decodeSpeed, parseChunk } from '../fleet/chat';
import { count, number, seconds, UNKNOWN } from '../format/text';
import { href } from '../router';
import { replicas } from '../store';
import { session } from '../session';
import { messageOf } from '../ui/Dialog';
import { Empty } from '../ui/State';
import { useTitle } from '../ui/use';

interface Model {
  id: string;
  max_model_len?: number;
}

interface Message {
  role: 'user' | 'assistant';
  text: string;
  reasoning?: string;
  figures?: Figures;
  problem?: string;
}

interface Figures {
  firstTokenSeconds?: number;
  tokensPerSecond?: number;
  promptTokens?: number;
  completionTokens?: number;
  replica?: string;
  finishReason?: string;
}

export function Playground() {
  useTitle('Playground');
  const [models, setModels] = useState<Model[]>();
  const [problem, setProblem] = useState<string>();
  const [model, setModel] = useState('');
  const [key, setKey] = useState('');
  const [needsKey, setNeedsKey] = useState(false);
  const [system, setSystem] = useState('');
  const [temperature, setTemperature] = useState(0.7);
  const [maxTokens, setMaxTokens] = useState(512);
  const [text, setText] = useState('');
  const [messages, setMessages] = useState<Message[]>([]);
  const [stop, setStop] = useState<AbortController>();
  const end = useRef<HTMLDivElement>(null);

  const headers = (): Record<string, string> => (key ? { 'X-Rooflet-Api-Key': key } : {});
  const load = () => {
    setProblem(undefined);
    json<{ data: Model[] }>('/proxy/openai/v1/models', { headers: headers() })
      .then((list) => {
        setModels(list.data);
        setModel((current) => current || (list.data.find((entry) => entry.max_model_len !== undefined) ?? list.data[0])?.id || '');
      })
      .catch((error: unknown) => {
        if (error instanceof Problem && error.status === 401) setNeedsKey(true);
        setProblem(messageOf(error));
      });
  };
  useEffect(load, []);
  useEffect(() => () => stop?.abort(), [stop]);
  useEffect(() => end.current?.scrollIntoView({ block: 'nearest' }), [messages]);

  const ask = async (event: Event) => {
    event.preventDefault();
    if (text.trim() === '' || stop) return;
    const controller = new AbortController();
    setStop(controller);
    const history: Message[] = [...messages, { role: 'user', text }];
    setText('');
    const answer: Message = { role: 'assistant', text: '' };
    const show = () => setMessages([...history, { ...answer, figures: answer.figures && { ...answer.figures } }]);
    show();
    try {
      await stream(history, answer, show, controller.signal);
    } catch (error) {
      if (!controller.signal.aborted) {
        answer.problem = messageOf(error);
        if (error instanceof Problem && error.status === 401) setNeedsKey(true);
      }
    }
    show();
    setStop(undefined);
  };

  const stream = async (history: Message[], answer: Message, show: () => void, signal: AbortSignal) => {
    const body = {
      model, stream: true, stream_options: { include_usage: true }, temperature, max_tokens: maxTokens,
      messages: [...(system ? [{ role: 'system', content: system }] : []), ...history.filter((message) => message.text !== '').map((message) => ({ role: message.role, content: message.text }))],
    };
    const sentAt = performance.now();
    const response = await request('/proxy/openai/v1/chat/completions', {
      method: 'POST', body: JSON.stringify(body), signal, headers: { 'Content-Type': 'application/json', ...headers() },
    });
    const figures: Figures = { replica: response.headers.get('x-rooflet-replica') ?? undefined };
    answer.figures = figures;
    let firstAt: number | undefined;
    let lastAt: number | undefined;
    let scheduled = false;
    for await (const line of lines(response)) {
      const chunk = parseChunk(line);
      if (!chunk) continue;
      if (chunk.error) throw new Problem('rejected', chunk.error);
      if (chunk.text || chunk.reasoning) {
        lastAt = performance.now();
        firstAt ??= lastAt;
        answer.text += chunk.text;
        if (chunk.reasoning) answer.reasoning = (answer.reasoning ?? '') + chunk.reasoning;
      }
      figures.finishReason = chunk.finishReason ?? figures.finishReason;
      figures.promptTokens = chunk.promptTokens ?? figures.promptTokens;
      figures.completionTokens = chunk.completionTokens ?? figures.completionTokens;
      figures.firstTokenSeconds = firstAt === undefined ? undefined : (firstAt - sentAt) / 1000;
      figures.tokensPerSecond = decodeSpeed(figures.completionTokens, firstAt, lastAt);
      if (!scheduled) {
        scheduled = true;
        requestAnimationFrame(() => {
          scheduled = false;
          show();
        });
      }
    }
  };

  if (session.value?.gateway === false) return <Empty title="This server has no gateway">The playground needs a control plane with the role gateway.</Empty>;
  const limit = models?.find((entry) => entry.id === model)?.max_model_len;
  return (
    <>
      <div class="view-head"><h1>Playground</h1></div>
      <div class="playground">
        <form class="settings" onSubmit={(event) => event.preventDefault()}>
          <label class="field"><span>Model</span>
            <select value={model} onChange={(event) => setModel(event.currentTarget.value)} disabled={!models}>
              {(models ?? []).map((entry) => <option key={entry.id} value={entry.id}>{entry.id}{entry.max_model_len === undefined ? ' (not ready)' : ''}</option>)}
            </select>
          </label>
          {limit !== undefined && <p class="note muted">{count(limit)} tokens of context</p>}
          <label class="field"><span>System prompt</span><textarea rows={3} value={system} onInput={(event) => setSystem(event.currentTarget.value)} /></label>
          <div class="field-pair">
            <label class="field"><span>Temperature</span><input type="number" min="0" max="2" step="0.1" value={temperature} onInput={(event) => setTemperature(event.currentTarget.valueAsNumber || 0)} /></label>
            <label class="field"><span>Max. tokens</span><input type="number" min="1" max="100000" value={maxTokens} onInput={(event) => setMaxTokens(event.currentTarget.valueAsNumber || 1)} /></label>
          </div>
          {(needsKey || key !== '') && (
            <label class="field"><span>API key</span><input type="password" autocomplete="off" value={key} onInput={(event) => setKey(event.currentTarget.value)} onChange={load} /></label>
          )}
          {needsKey && <p class="note muted">The gateway requires a key. The page sends it with each request and does not store it.</p>}
          {messages.length > 0 && <button type="button" class="button" disabled={stop !== undefined} onClick={() => setMessages([])}>New chat</button>}
        </form>
        <section class="chat" aria-label="Chat">
          <div class="messages" tabIndex={0} role="log" aria-label="Messages">
            {problem && <p class="problem" role="alert">{problem} <button type="button" class="button small" onClick={load}>Retry</button></p>}
            {models?.length === 0 && <Empty title="No model is served"><a href={href('apply')}>Apply a ModelDeployment</a> first.</Empty>}
            {messages.length === 0 && models && models.length > 0 && <Empty title="Ask the fleet">Each answer shows its time to first token, its speed, and the Mac that answered.</Empty>}
            {messages.map((message, index) => (
              <article key={index} class={`message ${message.role}`}>
                <h2 class="hidden">{message.role === 'user' ? 'You' : model}</h2>
                {message.reasoning && <details class="reasoning"><summary>Reasoning</summary><p>{message.reasoning}</p></details>}
                <p class="message-text">{message.text}{stop && index === messages.length - 1 && <span class="caret" aria-hidden="true" />}</p>
                {message.problem && <p class="problem" role="alert">{message.problem}</p>}
                {message.figures && <AnswerFigures of={message.figures} />}
              </article>
            ))}
            <div ref={end} />
          </div>
          <form class="composer" onSubmit={ask}>
            <textarea
              rows={2} placeholder="Message" aria-label="Message" value={text} onInput={(event) => setText(event.currentTarget.value)}
              onKeyDown={(event) => event.key === 'Enter' && !event.shiftKey && void ask(event)}
            />
            {stop
              ? <button type="button" class="button" onClick={() => stop.abort()}>Stop</button>
              : <button type="submit" class="button primary" disabled={text.trim() === '' || model === ''}>Send</button>}
          </form>
        </section>
      </div>
    </>
  );
}

function AnswerFigures({ of }: { of: Figures }) {
  const replica = of.replica === undefined ? undefined : replicas.objects.value.items.get(of.replica);
  const node = replica?.spec.nodeName;
  return (
    <dl class="answer-figures">
      <div><dt>TTFT</dt><dd>{seconds(of.firstTokenSeconds)}</dd></div>
      <div><dt>Speed</dt><dd>{number(of.tokensPerSecond)} tok/s</dd></div>
      <div><dt>Tokens</dt><dd>{count(of.promptTokens)} → {count(of.completionTokens)}</dd></div>
      <div><dt>Mac</dt><dd>{node ? <a href={href('macs', node)}>{node}</a> : UNKNOWN}</dd></div>
      {of.finishReason && of.finishReason !== 'stop' && <div><dt>Ended by</dt><dd>{of.finishReason}</dd></div>}
    </dl>
  );
}
