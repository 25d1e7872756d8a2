// The kinds of charts: their units, their lines, and the value at their top.
const gib = (mib) => (mib == null ? null : mib / 1024);
const whole = (p) => (p.memory_mib ?? 0) + (p.memory_out_mib ?? 0);

// What each kind of chart draws. `of` reads a point; `colour` names a token. The legend tells `tells`, else what is drawn.
// A `band` is filled down to the line before it. A `rare` line is left out while no point has it. A `figure` is told, not drawn.
export const KINDS = {
  core: {
    unit: "%", digits: 1, top: () => 100,
    lines: [
      { label: "used", colour: "used", fill: "used-fill", of: (p) => p.core_percent },
      { label: "limit", colour: "limit", stepped: true, dash: [7, 4], css: "dashed", digits: 0, of: (p) => p.core_limit_percent },
      { label: "guaranteed", colour: "request", stepped: true, dash: [2, 4], css: "dotted", digits: 0, of: (p) => p.core_request_percent },
      { label: "throttled", colour: "throttled", width: 1.25, of: (p) => p.throttled_percent },
    ],
  },
  memory: {
    unit: "GiB", digits: 2,
    top: (points) => 1.2 * gib(Math.max(64, ...points.map((p) => Math.max(p.memory_mib ?? 0, p.memory_limit_mib ?? 0)))),
    lines: [
      { label: "used", colour: "memory", fill: "memory-fill", of: (p) => gib(p.memory_mib) },
      { label: "limit", colour: "limit", stepped: true, dash: [7, 4], css: "dashed", of: (p) => gib(p.memory_limit_mib) },
    ],
  },
  // Of a claim that may borrow memory: what is promised, borrowed, and in host memory, one above the other.
  "borrowed-memory": {
    unit: "GiB", digits: 2,
    top: (points) => 1.2 * gib(Math.max(64, ...points.map((p) => Math.max(whole(p), p.memory_limit_mib ?? 0)))),
    lines: [
      { label: "promised", colour: "memory", fill: "memory-fill", of: (p) => (p.memory_mib == null ? null : gib(p.memory_mib - (p.borrowed_mib ?? 0))) },
      { label: "borrowed", colour: "borrowed", band: "borrowed-fill", of: (p) => gib(p.memory_mib), tells: (p) => gib(p.borrowed_mib) },
      { label: "out", colour: "out", band: "out-fill", of: (p) => (p.memory_mib == null ? null : gib(whole(p))), tells: (p) => gib(p.memory_out_mib) },
      { label: "limit", colour: "limit", stepped: true, dash: [7, 4], css: "dashed", of: (p) => gib(p.memory_limit_mib) },
      { label: "moved", unit: "GiB/s", figure: true, of: (p) => gib(p.moved_mib_per_second) },
      { label: "stood", unit: "%", digits: 1, figure: true, of: (p) => p.stood_percent },
    ],
  },
  gpu: {
    unit: "%", digits: 0, top: () => 100,
    lines: [
      { label: "utilisation", colour: "used", fill: "used-fill", of: (p) => p.core_percent },
      { label: "memory", colour: "memory", of: (p, chart) => (p.memory_mib == null ? null : (100 * p.memory_mib) / chart.memory) },
      { label: "lent", colour: "borrowed", rare: true, of: (p, chart) => (p.borrowed_mib == null ? null : (100 * p.borrowed_mib) / chart.memory) },
    ],
  },
  power: {
    unit: "W", digits: 0, top: (points) => 1.2 * Math.max(50, ...points.map((p) => p.power_watts ?? 0)),
    lines: [{ label: "power", colour: "request", of: (p) => p.power_watts }],
  },
  "fleet-core": share("core", "used", "used-fill"),
  "fleet-memory": share("memory", "memory", "memory-fill"),
  // Every change of a quota's numbers: each holds until the next.
  quota: {
    unit: "", digits: 1, endless: true,
    top: (points) => 1.15 * Math.max(1, ...points.map((p) => Math.max(p.used, p.hard ?? 0))),
    lines: [
      { label: "used", colour: "used", fill: "used-fill", stepped: true, of: (p) => p.used },
      { label: "quota", colour: "limit", stepped: true, dash: [7, 4], css: "dashed", of: (p) => p.hard },
    ],
  },
  // Sums of spans: a bar from each span's beginning to its end.
  hours: {
    unit: "h", digits: 2, endless: true,
    top: (points) => 1.15 * Math.max(0.01, ...points.map((p) => Math.max(p.reserved, p.used))),
    lines: [
      { label: "allocated", colour: "limit", bars: true, dash: [7, 4], css: "dashed", of: (p) => p.reserved },
      { label: "used", colour: "used", bars: true, fill: "used-fill", of: (p) => p.used },
    ],
  },
  // Sums since the beginning of the period; the forecast goes on to the month's end, where the other lines have no value.
  period: {
    unit: "h", digits: 2, endless: true, newest: true,
    top: (points) => 1.15 * Math.max(0.01, ...points.map((p) => Math.max(p.reserved ?? 0, p.used ?? 0, p.forecast ?? 0))),
    lines: [
      { label: "allocated", colour: "limit", of: (p) => p.reserved },
      { label: "used", colour: "used", fill: "used-fill", of: (p) => p.used },
      { label: "forecast", colour: "request", dash: [3, 5], css: "dotted", of: (p) => p.forecast },
    ],
  },
};

// What of the fleet is promised, and what of it is in use.
function share(what, colour, fill) {
  return {
    unit: "%", digits: 0, top: () => 100,
    lines: [
      { label: "used", colour, fill, of: (p) => p[`${what}_used`] },
      { label: "leased", colour: "limit", dash: [7, 4], css: "dashed", of: (p) => p[`${what}_leased`] },
    ],
  };
}
