// Times, quantities and statuses as people read them.

/**
 * Returns the age of a time as kubectl prints it: `5m`, `3h12m`, `2d`.
 * @param {string|undefined} time
 * @param {number} [now]
 */
export function age(time, now = Date.now()) {
  if (!time) return '';
  const seconds = Math.max(0, Math.floor((now - Date.parse(time)) / 1000));
  const minutes = Math.floor(seconds / 60);
  const hours = Math.floor(minutes / 60);
  const days = Math.floor(hours / 24);
  if (seconds < 120) return `${seconds}s`;
  if (minutes < 10) return seconds % 60 ? `${minutes}m${seconds % 60}s` : `${minutes}m`;
  if (minutes < 180) return `${minutes}m`;
  if (hours < 8) return minutes % 60 ? `${hours}h${minutes % 60}m` : `${hours}h`;
  if (hours < 48) return `${hours}h`;
  if (days < 8) return hours % 24 ? `${days}d${hours % 24}h` : `${days}d`;
  if (days < 730) return `${days}d`;
  return `${Math.floor(days / 365)}y`;
}

const FACTORS = {
  n: 1e-9, u: 1e-6, m: 1e-3, k: 1e3, M: 1e6, G: 1e9, T: 1e12, P: 1e15, E: 1e18,
  Ki: 2 ** 10, Mi: 2 ** 20, Gi: 2 ** 30, Ti: 2 ** 40, Pi: 2 ** 50, Ei: 2 ** 60,
};

/**
 * Parses a quantity of Kubernetes.
 * @param {string|number|undefined} quantity
 * @returns {number}
 */
export function parseQuantity(quantity) {
  const match = /^([+-]?[0-9.]+(?:[eE][+-]?[0-9]+)?)([A-Za-z]*)$/.exec(String(quantity ?? '0').trim());
  if (!match) return 0;
  return Number(match[1]) * (match[2] ? FACTORS[match[2]] ?? 1 : 1);
}

/** @param {number} bytes */
export function bytes(bytes) {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'];
  let unit = 0;
  while (bytes >= 1024 && unit < units.length - 1) {
    bytes /= 1024;
    unit += 1;
  }
  return `${bytes >= 100 || unit === 0 ? Math.round(bytes) : bytes.toFixed(1)} ${units[unit]}`;
}

/** @param {number} cores */
export function cores(cores) {
  return cores >= 10 ? cores.toFixed(1) : cores >= 1 ? cores.toFixed(2) : `${Math.round(cores * 1000)}m`;
}

const GOOD = new Set(['Running', 'Ready', 'Active', 'Bound', 'Available', 'Completed', 'Succeeded', 'Complete', 'True', 'Established', 'Normal']);
const BAD = new Set([
  'Failed', 'Error', 'CrashLoopBackOff', 'ImagePullBackOff', 'ErrImagePull', 'Evicted', 'OOMKilled', 'NotReady', 'Lost',
  'CreateContainerConfigError', 'CreateContainerError', 'InvalidImageName', 'RunContainerError', 'Unknown', 'BackOff',
  'ErrImageNeverPull', 'Init:Error', 'Init:CrashLoopBackOff', 'DeadlineExceeded', 'UnexpectedAdmissionError',
]);

/**
 * Returns the tone of a status word: good, bad, wait, or none.
 * @param {any} word
 */
export function tone(word) {
  const status = String(word ?? '');
  if (GOOD.has(status)) return 'good';
  if (BAD.has(status) || /Error$|BackOff$|Failed$/.test(status)) return 'bad';
  if (/^(Pending|ContainerCreating|Terminating|PodInitializing|Init:|Progressing|Released|Scheduling|Warning|Suspended)/.test(status)) return 'wait';
  const fraction = /^(\d+)\/(\d+)$/.exec(status);
  if (fraction) return fraction[1] === fraction[2] ? 'good' : 'wait';
  return '';
}

/**
 * Returns a readable form of what a request failed with.
 * @param {any} error
 */
export function describeError(error) {
  if (error?.status?.message) return error.status.message;
  return String(error?.message ?? error);
}
