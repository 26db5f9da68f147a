// The page: runs every case on the browser's adapter, compares, fills the table, and reports to the server.

import { operations } from "./operations.js";
import { Program } from "./program.js";

const element = (id) => document.getElementById(id);
const say = (text, good = true) => {
  element("status").textContent = text;
  element("status").className = good ? "" : "bad";
};
const json = async (path) => {
  const response = await fetch(path);
  if (!response.ok) throw new Error(`${path}: ${response.status} ${response.statusText}`);
  return response.json();
};
const bytesOf = (base64) => Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
const doublesOf = (base64) => new Float64Array(bytesOf(base64).buffer);

// The numbers of a result's bytes.
const NUMBERS = {
  float32: (bytes) => new Float32Array(bytes),
  bfloat16: (bytes) => new Float32Array(Uint32Array.from(new Uint16Array(bytes), (bits) => bits << 16).buffer),
  float16: (bytes) => Float64Array.from(new Uint16Array(bytes), (bits) => {
    const [exponent, fraction] = [(bits >> 10) & 31, bits & 1023];
    const magnitude = exponent === 31 ? (fraction ? NaN : Infinity) : exponent ? 2 ** (exponent - 15) * (1 + fraction / 1024) : 2 ** -24 * fraction;
    return bits >> 15 ? -magnitude : magnitude;
  }),
};

// worstOf is the largest error of one result, relative to what is allowed: at most 1 if it keeps the rule. NaN breaks it.
function worstOf(numbers, { reference, allowed }) {
  const [want, bound] = [doublesOf(reference), doublesOf(allowed)];
  if (numbers.length !== want.length) throw new Error(`${numbers.length} numbers in place of ${want.length}`);
  let worst = 0;
  numbers.forEach((number, i) => {
    const ratio = number === want[i] ? 0 : Math.abs(number - want[i]) / bound[i];
    if (!(ratio <= worst)) worst = ratio;
  });
  return worst;
}

async function measure(device, texts, pipelines, test) {
  const program = new Program(device, texts, pipelines, test);
  const operands = Object.fromEntries(
    Object.entries(test.operands).map(([name, { shape, bytes }]) => [name, program.tensor(test.dtype, shape, bytesOf(bytes))]),
  );
  const results = operations[test.call](program, operands, test);
  const names = Object.keys(test.results);
  const bytes = await program.run(names.map((name) => results[name]));
  return Math.max(...names.map((name, i) => worstOf(NUMBERS[test.dtype](bytes[i]), test.results[name])));
}

function tableOf({ dtypes, rows }) {
  const line = (cells, tag) => {
    const row = element("table").insertRow();
    return cells.map((text) => {
      const cell = row.appendChild(document.createElement(tag));
      cell.textContent = text;
      return cell;
    });
  };
  line(["operation", "kind", ...dtypes], "th");
  return rows.map(({ name, kind }) => line([name, kind, ...dtypes.map(() => "")], "td").slice(2));
}

async function adapterOf() {
  if (!navigator.gpu) {
    const why = isSecureContext ? "a current Chrome, Edge, Firefox or Safari has it" : "it is there on localhost and over https alone";
    throw new Error(`This browser has no WebGPU (navigator.gpu is missing): ${why}.`);
  }
  const adapter = await navigator.gpu.requestAdapter({ powerPreference: "high-performance" });
  if (!adapter) throw new Error("This browser has WebGPU but finds no adapter: chrome://gpu or about:support say why.");
  return adapter;
}

// hashesOf kernels' texts, which a test compares with those of the texts that Go makes.
async function hashesOf(texts) {
  return Promise.all(
    texts.map(async (text) => {
      const digest = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(text));
      return [...new Uint8Array(digest)].map((byte) => byte.toString(16).padStart(2, "0")).join("");
    }),
  );
}

async function run() {
  const report = { passed: false, adapter: null, figures: [] };
  try {
    const adapter = await adapterOf();
    const { vendor, architecture, device: name, description } = adapter.info;
    report.adapter = [vendor, architecture, name, description].filter(Boolean).join(" ") || "an adapter without a name";
    element("adapter").textContent = `Adapter: ${report.adapter}`;
    const device = await adapter.requestDevice();
    let failure = "";
    device.onuncapturederror = ({ error }) => (failure ||= error.message);
    const [texts, plan] = await Promise.all([json("kernels.json"), json("rows.json")]);
    const cells = tableOf(plan);
    const pipelines = new Map(); // by the text of the kernel
    const tests = plan.rows.flatMap((row, index) => plan.dtypes.map((dtype, column) => ({ ...row, dtype, cell: cells[index][column], path: `case/${index}/${dtype}` })));
    let next = json(tests[0].path);
    for (const [i, { name, kind, dtype, cell }] of tests.entries()) {
      say(`Running ${name} ${kind} in ${dtype}.`);
      const test = await next;
      next = tests[i + 1] && json(tests[i + 1].path); // which the server makes meanwhile
      const before = pipelines.size;
      const worst = await measure(device, texts, pipelines, test);
      if (failure) throw new Error(failure);
      const passed = worst <= 1;
      report.figures.push({ operation: name, kind, dtype, worst, passed, kernels: await hashesOf([...pipelines.keys()].slice(before)) });
      cell.textContent = `${worst.toFixed(2)} ${passed ? "✓" : "✗"}`;
      cell.className = passed ? "good" : "bad";
    }
    const broken = report.figures.filter((figure) => !figure.passed).length;
    report.passed = broken === 0;
    say(broken ? `${broken} of ${report.figures.length} break the rule.` : `All ${report.figures.length} keep the rule.`, !broken);
  } catch (error) {
    report.error = String(error.message ?? error);
    say(report.error, false);
  }
  await fetch("report", { method: "POST", body: JSON.stringify(report) });
}

run();
