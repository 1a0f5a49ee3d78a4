// Geometry of a Mac's roofline picture. Pure.

import type { FleetNode, ModelCost, ModelReplica, NodeModel } from '../api/kinds';
import { bandwidthOf } from './usage';

/** Roof of decoding: tokens per second of each stream = bandwidth / bytes per decode step. */
export interface Roof {
  basis: 'Measured' | 'Nominal';
  bytesPerSecond: number;
}

export interface Point {
  name: string;
  bytesPerStep: number;
  predicted?: { p10: number; p50: number; p90: number; basis: string };
  /** Measured decode tokens per second of a replica. */
  measured?: number;
  replica?: string;
}

export interface Picture {
  roofs: Roof[];
  points: Point[];
  x: [number, number];
  y: [number, number];
}

function unpacked(text: string | undefined): ModelCost | undefined {
  if (text === undefined) return undefined;
  try {
    return JSON.parse(text) as ModelCost;
  } catch {
    return undefined;
  }
}

/** Bytes that a decode step reads: weights, the experts of any stream, and the KV cache of all streams. */
export function bytesPerStep(model: NodeModel, streams = 1, contextTokens = 0): number | undefined {
  const cost = model.cost ?? unpacked(model.packedCost);
  if (!cost) return undefined;
  const block = cost.layers?.find((group) => (group.feedForward.experts ?? 0) > 0)?.feedForward;
  const active = block?.experts ? 1 - (1 - (block.activeExperts ?? 0) / block.experts) ** streams : 0;
  return cost.everyStepBytes + cost.expertBytes * active + model.kvBytesPerToken * contextTokens * streams;
}

/** Returns the picture of a Mac, or undefined if neither a bandwidth nor a model is known. */
export function pictureOf(node: FleetNode, replicas: Iterable<ModelReplica>): Picture | undefined {
  const { measured, nominal } = bandwidthOf(node);
  const roofs: Roof[] = [];
  if (measured !== undefined) roofs.push({ basis: 'Measured', bytesPerSecond: measured });
  if (nominal !== undefined) roofs.push({ basis: 'Nominal', bytesPerSecond: nominal });
  if (roofs.length === 0) return undefined;
  const points: Point[] = [];
  const served = new Set<string>();
  for (const replica of replicas) {
    const speed = replica.status?.admission?.speed;
    if (!speed || !(speed.bytesPerToken > 0)) continue;
    const listed = modelName(replica);
    served.add(listed);
    const model = node.status?.models?.find((entry) => entry.name === listed);
    const measured = replica.status?.measured;
    const measuredSpeed = Number(measured?.tokensPerSecond);
    const name = replica.spec.serving?.name ?? replica.metadata.name;
    const read = measured?.predicted && model && bytesPerStep(model, Math.max(1, measured.predicted.streams), measured.predicted.contextTokens);
    if (measured?.predicted && read && measuredSpeed > 0) {
      // Both speeds are those of the measured requests.
      points.push({ name, replica: replica.metadata.name, bytesPerStep: read, measured: measuredSpeed, predicted: { ...measured.predicted.tokensPerSecond, basis: measured.predicted.basis } });
    } else {
      // All streams busy at full context.
      const streams = replica.spec.serving?.maxConcurrency ?? 1;
      points.push({ name, replica: replica.metadata.name, bytesPerStep: speed.bytesPerToken * streams, predicted: { ...speed.tokensPerSecond, basis: speed.basis } });
    }
  }
  for (const model of node.status?.models ?? []) {
    const bytes = bytesPerStep(model);
    if (bytes !== undefined && bytes > 0 && !served.has(model.name)) points.push({ name: model.name, bytesPerStep: bytes });
  }
  const sizes = points.map((point) => point.bytesPerStep);
  const x: [number, number] = [decade(Math.min(5e8, ...sizes), Math.floor), decade(Math.max(2e10, ...sizes), Math.ceil)];
  const top = Math.max(...roofs.map((roof) => roof.bytesPerSecond)) / x[0];
  const lows = points.flatMap((point) => [point.measured, point.predicted?.p10]).filter((value): value is number => value !== undefined && value > 0);
  const bottom = Math.min(Math.min(...roofs.map((roof) => roof.bytesPerSecond)) / x[1], ...lows);
  return { roofs, points, x, y: [decade(bottom, Math.floor), decade(top, Math.ceil)] };
}

/** Name under which a Mac lists the model of a replica. */
function modelName(replica: ModelReplica): string {
  const { source, revision } = replica.spec.model;
  return source.startsWith('local://') ? source.slice('local://'.length) : revision ? `${source}@${revision}` : source;
}

/** Rounds to a power of ten, or to its double or half: 1, 2, 5, 10 … */
export function decade(value: number, round: (value: number) => number): number {
  const exponent = Math.floor(Math.log10(value));
  const base = 10 ** exponent;
  const fraction = value / base;
  const steps = [1, 2, 5, 10];
  if (round === Math.ceil) return base * (steps.find((step) => step >= fraction - 1e-9) ?? 10);
  return base * ([...steps].reverse().find((step) => step <= fraction + 1e-9) ?? 1);
}

/** Returns 1, 2, 5, 10 … between the limits. */
export function ticks([low, high]: [number, number]): number[] {
  const found: number[] = [];
  for (let exponent = Math.floor(Math.log10(low)); exponent <= Math.ceil(Math.log10(high)); exponent++) {
    for (const step of [1, 2, 5]) {
      const value = step * 10 ** exponent;
      if (value >= low * 0.999 && value <= high * 1.001) found.push(value);
    }
  }
  return found;
}
