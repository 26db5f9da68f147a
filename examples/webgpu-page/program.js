// A program of kernels on contiguous and broadcast tensors: what go/backend/webgpu makes of a problem, without what large, strided or foreign memory asks of it there.

import { source } from "./preprocessor.js";

const SHORT = { float32: "f32", float16: "f16", bfloat16: "bf16" };
const SIZE = { float32: 4, float16: 2, bfloat16: 2 };
const GROUP = 256; // threads
const TILE = 64; // rows and columns that one group multiplies
const RUN = 256; // terms that four threads add up
const SHARERS = 4;

// The fields of Params in kernels/webgpu/loops.wgsl, in words.
const PARAM = {
  count: 0, row: 1, rank: 2, accumulate: 3, rest: 4, split: 5, terms: 6, run: 7, sizes: 8, ends: 12, parameters: 16,
  lows: 20, limits: 24, offset: 26, shape: 28, operands: 44,
};
const OPERAND_WORDS = 20; // base, padding, strides

const count = (shape) => shape.reduce((product, size) => product * size, 1);

function contiguous(shape) {
  const strides = [];
  for (let d = shape.length - 1, step = 1; d >= 0; step *= shape[d--]) strides[d] = step;
  return strides;
}

// A tensor is a buffer with a dtype, sizes and strides in elements.
export const transposed = (t) => ({ ...t, shape: t.shape.toReversed(), strides: t.strides.toReversed() });

export function expanded(t, shape) {
  const extra = shape.length - t.shape.length;
  return { ...t, shape, strides: shape.map((size, d) => (d < extra || t.shape[d - extra] !== size ? 0 : t.strides[d - extra])) };
}

// ofRank adds the leading dimensions that a tensor lacks of a shape.
const ofRank = (t, rank) => {
  const extra = Array(rank - t.shape.length).fill(1);
  return { ...t, shape: [...extra, ...t.shape], strides: [...extra.map(() => 0), ...t.strides] };
};

// Four elements at a time: they lie side by side, each time from a multiple of four on.
function inQuads(operand, along = operand.shape.length - 1) {
  return (
    operand.strides[along] === 1 && operand.shape[along] % 4 === 0 && operand.strides.every((stride, d) => d === along || stride % 4 === 0)
  );
}

// operandsOf are those that are there, outputs first; an operand's place is that among the formula's.
const operandsOf = (outputs, inputs) =>
  [
    ...outputs.map((t, place) => t && { ...t, place, written: true, quads: false }),
    ...inputs.map((t, place) => t && { ...t, place, written: false, quads: false }),
  ].filter(Boolean);

// definitionsOf makes a template one kernel of a case with this dtype, as go/backend/webgpu/template.go does.
function definitionsOf(dtype, file, formula, all) {
  const bits = file === "elementwise" && formula.name === "identity" && !formula.accumulates && all.every((o) => o.dtype === all[0].dtype);
  const definitions = {
    COUNT: `${all.length}u`, REAL: bits ? "u32" : "f32", FORMULA: formula.name, KIND: formula.kind ?? "none",
    WEIGHT: formula.tensorWeight ? "tensor" : "number", ACCUMULATES: all.some((o) => o.accumulates) ? "run" : "",
    APPROXIMATE: SIZE[dtype] === 2 ? "yes" : "", NATIVE_HALVES: "", ENDS: "",
  };
  const numbers = (chosen) => all.flatMap((o, j) => (chosen(o) ? [j] : [])).join(" ");
  const read = (o) => !o.written || o.accumulates;
  Object.assign(definitions, {
    OPERANDS: numbers(() => true), INPUTS: numbers((o) => !o.written), OUTPUTS: numbers((o) => o.written),
    READ: numbers((o) => read(o) && !o.quads), QUADS_READ: numbers((o) => read(o) && o.quads),
    WRITTEN: numbers((o) => o.written && !o.quads), QUADS_WRITTEN: numbers((o) => o.written && o.quads),
  });
  all.forEach((o, j) => {
    const half = SIZE[o.dtype] === 2;
    const word = o.quads ? (half ? "vec2<u32>" : "vec4<u32>") : o.written && half ? "atomic<u32>" : "u32";
    Object.assign(definitions, {
      [`SLOT${j}`]: `${j + 1}`, [`ACCESS${j}`]: o.written ? "read_write" : "read", [`WORD${j}`]: word, [`PLACE${j}`]: `${o.place}`,
      [`TYPE${j}`]: SHORT[o.dtype], [`CODE${j}`]: bits ? `bits${8 * SIZE[o.dtype]}` : SHORT[o.dtype], [`QUAD${j}`]: o.quads ? "QUADS_" : "",
    });
  });
  return definitions;
}

// putNumbers writes the numbers of a call's formula as the kernel has them, as go/backend/webgpu/numbers.go does. A limit that is none is null here.
function putNumbers(params, { FORMULA, KIND }, parameters, quotients) {
  const numbers = new Float32Array(params.buffer);
  if (FORMULA.startsWith("gated") && KIND !== "situ") {
    const [limit, after, offset, ...rest] = parameters;
    const bits = (x) => (x == null ? 0xffffffff : new Uint32Array(Float32Array.of(x).buffer)[0]);
    params.set([bits(limit), bits(after)], PARAM.limits);
    numbers[PARAM.offset] = offset || -0;
    parameters = rest;
  }
  numbersOf(parameters, quotients).forEach((x, i) => {
    numbers[PARAM.parameters + i] = x;
    const low = x - Math.fround(x);
    if (Number.isFinite(low)) numbers[PARAM.lows + i] = low;
  });
}

// numbersOf are the numbers of a formula as the kernels have them, by its quotients (go/activation), if it has some.
function numbersOf(p, quotients) {
  const most = (2 - 2 ** -23) * 2 ** 127;
  const at = (place) => (place < 0 ? 1 : p[place]);
  const of = ({ over, under, bounded }) => {
    const x = at(over) / at(under);
    return bounded ? Math.max(-most, Math.min(x, most)) : x;
  };
  return quotients ? quotients.map(of) : p;
}

// Program collects dispatches; texts has the kernels, pipelines those that were compiled, by their source.
export class Program {
  #device; #texts; #pipelines; #dtype; #parameters; #quotients;
  #steps = [];
  #buffers = [];

  constructor(device, texts, pipelines, { dtype, parameters, quotients }) {
    [this.#device, this.#texts, this.#pipelines] = [device, texts, pipelines];
    [this.#dtype, this.#parameters, this.#quotients] = [dtype, parameters, quotients];
  }

  // tensor is a new one, with its bytes or zeros.
  tensor(dtype, shape, bytes) {
    const size = Math.max(16, Math.ceil((count(shape) * SIZE[dtype]) / 16) * 16);
    const buffer = this.#buffer(size, GPUBufferUsage.STORAGE | GPUBufferUsage.COPY_SRC | GPUBufferUsage.COPY_DST);
    if (bytes) {
      const padded = new Uint8Array(size);
      padded.set(bytes);
      this.#device.queue.writeBuffer(buffer, 0, padded);
    }
    return { buffer, dtype, shape, strides: contiguous(shape) };
  }

  #buffer(size, usage) {
    const buffer = this.#device.createBuffer({ size, usage });
    this.#buffers.push(buffer);
    return buffer;
  }

  // elementwise adds outputs = f(inputs), all of one shape.
  elementwise(formula, outputs, inputs) {
    let all = operandsOf(outputs, inputs);
    const shape = all[0].shape;
    const serves = (o) => !o.written && o.strides.at(-1) === 0; // one element for all four
    const per = shape.at(-1) % 4 === 0 && all.every((o) => inQuads(o) || serves(o)) ? 4 : 1;
    all = all.map((o) => ({ ...o, quads: per === 4 && !serves(o), accumulates: o.written && Boolean(formula.accumulates) }));
    const definitions = { ...definitionsOf(this.#dtype, "elementwise", formula, all), PER: `${per}u`, EACH: "all", TURNS: "0", THREADS: `${GROUP}u`, FLAT: "" };
    const loops = [...shape.keys()].reverse(); // innermost first
    const strides = all.map((o) => loops.map((d, i) => o.strides[d] * (i === 0 ? per : 1)));
    const params = this.#params(loops.map((d, i) => shape[d] / (i === 0 ? per : 1)), strides);
    params[PARAM.count] = count(shape) / per;
    this.#dispatch("elementwise", definitions, all, params, this.#row(params, count(shape) / per));
  }

  // sum adds the sum of one of f's outputs, that at a place, to where it has the size 1 and the inputs have not.
  sum(formula, place, output, inputs) {
    const shape = inputs.find(Boolean).shape;
    output = ofRank(output, shape.length);
    const partial = this.#chunks(formula, place, shape, output.shape, inputs);
    this.elementwise({ name: "identity", accumulates: formula.accumulates }, [output], [partial]);
  }

  // chunks adds the passes that leave one sum, in float32, for each element of the shape `kept`.
  #chunks(formula, place, shape, kept, inputs) {
    const summed = [...shape.keys()].filter((d) => kept[d] === 1 && shape[d] !== 1);
    const stays = [...shape.keys()].filter((d) => kept[d] !== 1);
    const terms = count(summed.map((d) => shape[d]));
    const chunks = Math.ceil(terms / RUN);
    const partial = this.tensor("float32", [chunks, ...kept]);
    const outputs = Array(place).fill(null);
    outputs[place] = { ...partial, shape: kept, strides: partial.strides.slice(1) };
    const all = operandsOf(outputs, inputs);
    const loops = [...stays.toReversed(), ...summed.toReversed()];
    const strides = all.map((o) => loops.map((d) => (o.written && summed.includes(d) ? 0 : o.strides[d])));
    const params = this.#params(loops.map((d) => shape[d]), strides);
    Object.assign(params, { [PARAM.count]: count(kept), [PARAM.split]: stays.length, [PARAM.terms]: terms, [PARAM.run]: RUN, [PARAM.sizes]: count(kept), [PARAM.sizes + 1]: chunks });
    const read = all.filter((o) => !o.written);
    const step = (o, dims) => Math.min(...dims.map((d) => o.strides[d]).filter((stride) => stride !== 0)); // Infinity where there is none
    const moving = read.map((o) => [step(o, summed), step(o, stays)]).filter((steps) => steps.every(Number.isFinite));
    const beside = count(kept) === 1 || moving.reduce((closer, [terms, others]) => closer + Math.sign(others - terms), 0) > 0;
    const once = (o) => o.strides[summed.at(-1)] === 0;
    const inFours = beside && read.every((o) => inQuads(o, summed.at(-1)) || (once(o) && o.shape[summed.at(-1)] % 4 === 0));
    const operands = all.map((o) => ({ ...o, quads: inFours && !o.written && !once(o) }));
    const definitions = {
      ...definitionsOf(this.#dtype, "reduce", { ...formula, accumulates: false }, operands),
      NEIGHBOURS: beside ? "yes" : "", APART: beside ? "1u" : "64u", SUBGROUPS: "",
    };
    this.#dispatch("reduce", definitions, operands, params, this.#row(params, count(kept) * chunks * SHARERS));
    const left = chunks > 1 ? this.#chunks({ name: "identity" }, 0, partial.shape, [1, ...kept], [partial]) : partial;
    return { ...left, shape: kept, strides: left.strides.slice(1) };
  }

  // gemm adds out = act(a b + bias) and pre = a b + bias for matrices; 16-bit outputs that are not in quads get their sums from a float32 product.
  gemm({ a, b, bias, out, pre, kind = "none", accumulates = false }) {
    const [m, k] = a.shape;
    const n = b.shape[1];
    const outputs = [out, pre].filter(Boolean);
    if (outputs.some((o) => SIZE[o.dtype] === 2 && !inQuads(o))) {
      const sums = this.tensor("float32", [m, n]);
      this.gemm({ a, b, pre: sums });
      this.elementwise({ name: "epilogue", kind, accumulates }, [out, pre], [sums, bias && expanded(bias, [m, n])]);
      return;
    }
    // Which dimension of out, pre, a and b is read or written in quads. (On Vulkan, Go reads those of a and b along k too, which a browser need not stand on.)
    const across = [1, 1, 0, 1];
    const all = [out, pre, a, b, bias].flatMap((t, place) =>
      t ? [{ ...t, place, written: place < 2, accumulates: place < 2 && accumulates, quads: place < 4 && inQuads(t, across[place]) }] : [],
    );
    const number = (place) => all.findIndex((o) => o.place === place);
    const along = (t, place) => (t.strides[1 - across[place]] < t.strides[across[place]] ? "along_k" : "across_k");
    const definitions = {
      ...definitionsOf(this.#dtype, "gemm", { name: "gemm", kind }, all),
      A: `${number(2)}`, B: `${number(3)}`, BIASES: bias ? `${number(4)}` : "", K_FLAT: "yes", A_ALONG: along(a, 2), B_ALONG: along(b, 3),
      HALVES: "0", PARTS: "1u", TILE: `${TILE}u`, WIDTH: `${TILE / 4 + 1}`, STEPS: "all", SUM_OF_SUMS: SIZE[this.#dtype] === 2 ? "" : "yes",
    };
    const steps = [([m, n]) => [m, n, 0], ([m, n]) => [m, n, 0], ([m, k]) => [m, 0, k], ([k, n]) => [0, n, k], ([n]) => [0, n, 0]]; // along m, n and k
    const strides = all.map((o) => steps[o.place](o.strides));
    const params = this.#params([m, n, k], strides);
    params.set([m, n, k, 0], PARAM.sizes);
    params.set([1, 2, 3, 3], PARAM.ends);
    this.#dispatch("gemm", definitions, all, params, [Math.ceil(n / TILE), Math.ceil(m / TILE), 1]);
  }

  // params has the loops, innermost first, and each operand's strides; it accumulates where the kernel can.
  #params(shape, strides) {
    const params = new Uint32Array(PARAM.operands + strides.length * OPERAND_WORDS);
    params[PARAM.rank] = shape.length;
    params[PARAM.accumulate] = 1;
    new Float32Array(params.buffer)[PARAM.rest] = 1 - (this.#parameters[0] ?? 0);
    params.set(shape, PARAM.shape);
    strides.forEach((list, j) => params.set(list, PARAM.operands + j * OPERAND_WORDS + 4));
    return params;
  }

  #row(params, threads) {
    params[PARAM.row] = Math.ceil(threads / GROUP);
    return [params[PARAM.row], 1, 1];
  }

  #dispatch(file, definitions, all, params, groups) {
    putNumbers(params, definitions, this.#parameters, this.#quotients);
    const text = source(file, definitions, this.#texts);
    if (!this.#pipelines.has(text)) {
      const module = this.#device.createShaderModule({ code: text });
      this.#pipelines.set(text, this.#device.createComputePipelineAsync({ layout: "auto", compute: { module, entryPoint: "main" } }));
    }
    this.#steps.push({ pipeline: this.#pipelines.get(text), params, groups, buffers: all.map((o) => o.buffer) });
  }

  // run sends everything as one submission and returns the bytes of some tensors.
  async run(results) {
    const device = this.#device;
    const pipelines = await Promise.all(this.#steps.map((step) => step.pipeline));
    const encoder = device.createCommandEncoder();
    const pass = encoder.beginComputePass();
    this.#steps.forEach(({ params, groups, buffers }, i) => {
      const uniform = this.#buffer(params.byteLength, GPUBufferUsage.UNIFORM | GPUBufferUsage.COPY_DST);
      device.queue.writeBuffer(uniform, 0, params);
      const entries = [uniform, ...buffers].map((buffer, binding) => ({ binding, resource: { buffer } }));
      pass.setPipeline(pipelines[i]);
      pass.setBindGroup(0, device.createBindGroup({ layout: pipelines[i].getBindGroupLayout(0), entries }));
      pass.dispatchWorkgroups(...groups);
    });
    pass.end();
    const copies = results.map((t) => {
      const copy = this.#buffer(t.buffer.size, GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST);
      encoder.copyBufferToBuffer(t.buffer, 0, copy, 0, t.buffer.size);
      return copy;
    });
    device.queue.submit([encoder.finish()]);
    await Promise.all(copies.map((copy) => copy.mapAsync(GPUMapMode.READ)));
    const bytes = results.map((t, i) => copies[i].getMappedRange().slice(0, count(t.shape) * SIZE[t.dtype]));
    this.#buffers.forEach((buffer) => buffer.destroy());
    return bytes;
  }
}
