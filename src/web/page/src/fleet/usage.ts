// Use of a Mac's memory and bandwidth by its replicas. Pure.

import { condition, type FleetNode, type ModelReplica, type NodeSpeed } from '../api/kinds';
import { parseQuantity } from '../format/quantity';
import { bandwidth, number } from '../format/text';

export interface Usage {
  /** Memory that models may use, in bytes. */
  memoryLimit?: number;
  /** Memory that replicas have reserved, in bytes. */
  memoryReserved: number;
  /** Part of `memoryReserved` with loaded weights, in bytes. */
  memoryLoaded: number;
  /** Share of the chip's time, and thus of the bandwidth, that replicas have reserved, in percent. */
  bandwidthReserved: number;
  /** Part of `bandwidthReserved` of replicas with in-flight requests, in percent. */
  bandwidthActive: number;
  replicas: number;
  ready: number;
  running: number;
  waiting: number;
}

/** Phases in which a replica occupies its node. */
const FINISHED = new Set(['Succeeded', 'Failed']);

/** Returns the requests of a replica. A silent Mac has none: the status has what its agent reported last. */
export function currentRequests(status: ModelReplica['status']): { running: number; waiting: number } | undefined {
  return condition(status?.conditions, 'Ready')?.reason === 'NodeNotReady' ? undefined : status?.requests;
}

export function usageOf(node: FleetNode | undefined, replicas: Iterable<ModelReplica>): Usage {
  const usage: Usage = {
    memoryLimit: parseQuantity(node?.status?.allocatable?.memory),
    memoryReserved: 0, memoryLoaded: 0, bandwidthReserved: 0, bandwidthActive: 0,
    replicas: 0, ready: 0, running: 0, waiting: 0,
  };
  for (const { status } of replicas) {
    usage.replicas += 1;
    if (!status || FINISHED.has(status.phase)) continue;
    const ready = condition(status.conditions, 'Ready');
    const requests = currentRequests(status);
    const running = requests?.running ?? 0;
    const chipTime = status.admission?.admitted ? status.admission.chipTimePercent : 0;
    usage.memoryReserved += parseQuantity(status.reservedMemory) ?? 0;
    usage.memoryLoaded += status.model?.weightsBytes ?? 0;
    usage.bandwidthReserved += chipTime;
    usage.bandwidthActive += running > 0 ? chipTime : 0;
    usage.ready += ready?.status === 'True' ? 1 : 0;
    usage.running += running;
    usage.waiting += requests?.waiting ?? 0;
  }
  return usage;
}

/** Bandwidth of a Mac, in bytes per second. A nominal figure is never returned as measured. */
export interface BandwidthFigures {
  measured?: number;
  nominal?: number;
}

export function bandwidthOf(node: FleetNode): BandwidthFigures {
  return {
    measured: node.status?.speed?.readBytesPerSecond ?? node.status?.probe?.read?.medianBytesPerSecond,
    nominal: node.status?.dataSheet?.memoryBytesPerSecond,
  };
}

const VERDICTS: Record<NodeSpeed['verdict'], string | undefined> = {
  Plausible: undefined,
  NotJudged: undefined,
  TooLow: 'slower than usual for this chip; predictions have wider intervals',
  TooHigh: 'faster than the memory of this chip; not used for predictions',
};

/** Returns the measured figures of a Mac with their names. */
export function speedRows(speed: NodeSpeed): [string, string][] {
  const disk = speed.diskReadBytesPerSecond;
  const rows: [string, string | undefined][] = [
    ['Read', bandwidth(speed.readBytesPerSecond)],
    ['4-bit matrix-vector', bandwidth(speed.decodeBytesPerSecond)],
    ['Disk read', disk && `${bandwidth(disk.p50)} (${number(disk.p10 / 1e9)} to ${number(disk.p90 / 1e9)})`],
    ['Plausibility', VERDICTS[speed.verdict]],
  ];
  return rows.filter((row): row is [string, string] => row[1] !== undefined);
}
