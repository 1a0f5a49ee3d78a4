// Kinds of the API that the page shows. Only the fields that the page uses are listed.

export interface Meta {
  name: string;
  namespace?: string;
  uid?: string;
  resourceVersion?: string;
  generation?: number;
  creationTimestamp?: string;
  deletionTimestamp?: string;
  labels?: Record<string, string>;
  annotations?: Record<string, string>;
  ownerReferences?: { kind: string; name: string; uid: string }[];
}

export interface KubeObject {
  apiVersion?: string;
  kind?: string;
  metadata: Meta;
}

export interface Condition {
  type: string;
  status: 'True' | 'False' | 'Unknown';
  reason: string;
  message: string;
  lastTransitionTime?: string;
}

export interface Percentiles {
  p10: number;
  p50: number;
  p90: number;
}

export interface Figure {
  medianBytesPerSecond: number;
  p10BytesPerSecond: number;
  p90BytesPerSecond: number;
  samples: number;
  steady: boolean;
}

export interface Spread {
  median: number;
  p10: number;
  p90: number;
}

/** Measured speed of a Mac, in `status.speed`. */
export interface NodeSpeed {
  basis: string;
  engine: string;
  measuredAt: string;
  verdict: 'NotJudged' | 'Plausible' | 'TooHigh' | 'TooLow';
  readBytesPerSecond: number;
  decodeBytesPerSecond: number;
  diskReadBytesPerSecond?: Percentiles;
  thermalState: string;
  powerSource: string;
}

/** Figures of a probe, which earlier agents write to `status.probe`. */
export interface Probe {
  basis: string;
  read?: Figure;
  copy?: Figure;
  triad?: Figure;
  qmv?: Figure;
  matmulFlopsPerSecond?: Spread;
  quantizedMatmulFlopsPerSecond?: Spread;
  sustained?: { seconds: number; thermalFactor: number; firstBytesPerSecond: number; lastBytesPerSecond: number };
  diskRead?: Figure;
  plausibility?: { verdict: string; readToSpec?: number; message: string };
  thermalState: string;
  powerSource: string;
  lowPowerMode?: boolean;
  engine: string;
  measuredAt: string;
  expiresAt?: string;
  durationSeconds: number;
}

export interface ModelCost {
  everyStepBytes: number;
  expertBytes: number;
  layers?: { count: number; feedForward: { experts?: number; activeExperts?: number } }[];
}

export interface NodeModel {
  name: string;
  architecture: string;
  weightsBytes: number;
  kvBytesPerToken: number;
  maxContextTokens: number;
  problem?: string;
  /** In status.models, agents write the JSON text instead. */
  cost?: ModelCost;
  packedCost?: string;
}

export interface FleetNode extends KubeObject {
  spec: { unschedulable?: boolean; drain?: boolean; taints?: { key: string; value?: string; effect: string }[] };
  status?: {
    chip?: { name: string; gpuCores?: number; cpuCores?: number; machineModel?: string; development?: boolean };
    dataSheet?: { memoryBytesPerSecond: number; source: string; note?: string };
    nodeInfo?: { operatingSystem: string; agentVersion: string; engine: string; machineId: string };
    capacity?: { memory: string; memoryBandwidth?: string; disk?: string };
    allocatable?: { memory: string; memoryBandwidth?: string; disk?: string };
    speed?: NodeSpeed;
    probe?: Probe;
    summary?: { memory: string; bandwidth: string; freeMemory: string; freeBandwidth: string };
    endpoint?: string;
    models?: NodeModel[];
    replicas?: number;
    conditions?: Condition[];
  };
}

export interface Serving {
  name?: string;
  contextTokens?: number;
  maxConcurrency?: number;
}

export interface Objectives {
  decodeTokensPerSecond?: number;
  timeToFirstToken?: { max: string; atPromptTokens?: number };
}

export interface Template {
  model: { source: string; revision?: string };
  serving?: Serving;
  restartedAt?: string;
}

export interface CanaryStep {
  setWeight?: number;
  pause?: { duration?: string };
  analysis?: Record<string, unknown>;
}

export interface Rollout {
  stableRevision?: string;
  revision?: string;
  startedAt?: string;
  step?: number;
  stepStartedAt?: string;
  analysis?: string;
  aborted?: { reason: string; message: string; at: string };
  /** Template that the controller rejects, unset if the newest revision has the current template. */
  refused?: { revision: string; since: string };
  predictedTokensPerSecond?: number;
  referenceTokensPerSecond?: number;
}

export interface ModelDeployment extends KubeObject {
  spec: Template & {
    replicas?: number;
    objectives?: Objectives;
    paused?: boolean;
    priority?: number;
    autoscaling?: { minReplicas?: number; maxReplicas: number };
    strategy?: {
      type?: string;
      rollingUpdate?: { maxUnavailable?: number | string; maxSurge?: number | string; minThroughput?: number | string };
      canary?: { steps: CanaryStep[] };
    };
  };
  status?: {
    observedGeneration?: number;
    replicas?: number;
    updatedReplicas?: number;
    readyReplicas?: number;
    availableReplicas?: number;
    currentRevision?: string;
    traffic?: { revision: string; weight: number }[];
    rollout?: Rollout;
    tokensPerSecond?: string;
    timeToFirstToken?: string;
    lastStart?: { seconds: number };
    conditions?: Condition[];
  };
}

export interface ModelRevision extends KubeObject {
  spec: Template & { revision: number };
}

export interface Admission {
  admitted: boolean;
  binding?: string;
  context?: { askedTokens: number; modelTokens: number; fitsTokens?: number };
  memory: {
    weightsBytes: number; kvBytes: number; activationBytes: number; runtimeBytes: number; limitBytes: number; freeBytes: number;
  };
  disk?: { requiredBytes: number; downloadBytes?: number; limitBytes?: number; freeBytes?: number };
  speed?: {
    tokensPerSecond: Percentiles;
    bytesPerToken: number;
    timeToFirstTokenSeconds: Percentiles;
    promptTokens: number;
    sustainedPercent?: number;
    basis: string;
    timeToFirstTokenBasis: string;
  };
  chipTimePercent: number;
  freeChipTimePercent: number;
  refusals?: string[];
  suggestions?: string[];
}

export interface Measured {
  tokensPerSecond: string;
  timeToFirstTokenSeconds: string;
  requests: number;
  tokensPerSecondSample?: Percentiles & { count: number };
  timeToFirstTokenSample?: Percentiles & { count: number };
  predicted?: {
    tokensPerSecond: Percentiles; timeToFirstTokenSeconds: Percentiles; streams: number; promptTokens: number; contextTokens: number; basis: string;
  };
}

export interface ModelReplica extends KubeObject {
  spec: Template & { nodeName?: string; objectives?: Objectives; priority?: number };
  status?: {
    phase: string;
    reservedMemory?: string;
    admission?: Admission;
    download?: { bytes: number; totalBytes: number };
    model?: { weightsBytes: number; contextTokens: number; architecture: string };
    requests?: { running: number; waiting: number; completed: number; failed: number; idleSince?: string };
    measured?: Measured;
    restarts?: number;
    lastTermination?: { exitCode?: number; signal?: number; reason: string; message: string; finishedAt: string };
    conditions?: Condition[];
  };
}

export interface PerformanceClaim extends KubeObject {
  spec: {
    source?: string;
    hardware?: Record<string, unknown> & { chip?: string };
    model?: Record<string, unknown> & { name?: string };
    figures?: { name?: string; kind: string; value: string | number }[];
    statements?: string[];
  };
  status?: {
    verdict?: string;
    figures?: string;
    findings?: { verdict: string; field: string; message: string; claimed?: string; right?: string; factor?: number }[];
    checks?: { field: string; subject: string; verdict: string; remarks?: string[] }[];
    conditions?: Condition[];
  };
}

export interface PlanVerdict {
  feasible: boolean;
  summary: string;
  assumptions?: string[];
  binding?: string;
  demandFactor: number;
  demandFactorBound: number;
  proven: boolean;
  unservable?: string[];
  nodes: number;
  nodesUsed: number;
  survivesNodeLoss: boolean;
  models: {
    name: string; requestsPerSecond: number; tokensPerSecond: number; contextTokens: number; maxConcurrency: number;
    served: boolean; replicas: number;
    fits?: { class: string; admitted: boolean; refusals?: string[]; binding?: string; tokensPerSecond?: Percentiles; basis: string }[];
  }[];
  classes: {
    name: string; chip: string; nodes: number; nodesUsed: number; bandwidthBytesPerSecond?: number; basis: string;
    memoryLimitBytes: number; memoryUsedBytes: number; utilizationPercent: number; reservedPercent: number;
    tokensPerSecond: number; price?: number; watts?: number; binding?: string; breaksAt?: number;
  }[];
  headroom: {
    memoryUsedBytes: number; memoryLimitBytes: number; busyPercent: number; busyLimitPercent: number;
    tokensPerSecond: number; maxTokensPerSecond: number; twiceMemoryFactor?: number; twiceSpeedFactor?: number;
  };
  nodeLosses?: { class: string; survives: boolean; proven: boolean; demandFactor?: number; interrupted?: string[] }[];
  price?: number;
  watts?: number;
  purchase?: {
    minimises: string;
    best?: Basket;
    lowerBound: number;
    proven: boolean;
    shortfall?: string;
    alternatives?: Basket[];
    rejectedOffers?: { name: string; model?: string; reason: string; message: string }[];
  };
}

export interface Basket {
  items?: { name: string; count: number; price?: number }[];
  nodes: number;
  price?: number;
  watts?: number;
  demandFactor: number;
  survivesNodeLoss: boolean;
}

export interface CapacityPlan extends KubeObject {
  spec: { demand: { name?: string; model: string; requestsPerSecond: number }[] };
  status?: { binding?: string; nodes?: string; verdict?: PlanVerdict; conditions?: Condition[] };
}

export interface ApiKey extends KubeObject {
  spec: { secretHint?: string; models?: string[]; requestsPerMinute?: number; tokensPerMinute?: number; tokensPerDay?: number; expiresAt?: string };
  status?: { lastUsedTime?: string; day?: string; requestsToday?: number; tokensToday?: number };
}

export interface KubeEvent extends KubeObject {
  type: string;
  reason: string;
  message: string;
  count?: number;
  firstTimestamp?: string;
  lastTimestamp?: string;
  eventTime?: string | null;
  series?: { count: number; lastObservedTime: string };
  involvedObject: { kind: string; name: string; namespace?: string; uid?: string };
  reportingComponent?: string;
  source?: { component?: string; host?: string };
}

export interface Status {
  kind: 'Status';
  reason?: string;
  message?: string;
  code?: number;
}

/** Returns the condition of this type. */
export function condition(conditions: Condition[] | undefined, type: string): Condition | undefined {
  return conditions?.find((entry) => entry.type === type);
}

/** Returns the time of an event's last occurrence. */
export function eventTime(event: KubeEvent): string | undefined {
  return event.series?.lastObservedTime ?? event.lastTimestamp ?? event.eventTime ?? event.metadata.creationTimestamp;
}

/** Returns the name with its namespace, which is unique among the objects of a kind. */
export function keyOf(meta: Meta): string {
  return meta.namespace === undefined ? meta.name : `${meta.namespace}/${meta.name}`;
}
