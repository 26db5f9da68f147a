// The preprocessor of the kernels: what kernels/webgpu/embed.go does, where its directives are explained. A test compares the two, text by text.

const plain = /\$[A-Z]+(_[A-Z]+)*/g;
const made = /\$\{[A-Z0-9_]*\}/g;

// source is the WGSL of a kernel for some definitions; files has the texts by name.
export function source(name, definitions, files) {
  const included = new Set();
  const out = [];

  function include(name) {
    if (included.has(name)) return;
    included.add(name);
    if (!(name in files)) throw new Error(`there is no kernel file ${name}`);
    const lines = files[name].replace(/\n$/, "").split("\n");
    const end = block(lines, 0, {}, true);
    if (end < lines.length) throw new Error(`${name}: ${lines[end]} without a beginning`);
  }

  // block handles lines up to the directive that ends them, and returns where that is. Nothing is written where the block is not live.
  function block(lines, at, loop, live) {
    while (at < lines.length) {
      const directive = lines[at].split(" ", 1)[0];
      if (directive === "#include") {
        if (live) include(lines[at].slice("#include ".length));
        at++;
      } else if (directive === "#for") {
        at = repeat(lines, at, loop, live);
      } else if (directive === "#if") {
        at = choose(lines, at, loop, live);
      } else if (["#elif", "#else", "#end"].includes(directive)) {
        return at;
      } else {
        if (live) out.push(substitute(lines[at], loop));
        at++;
      }
    }
    return at;
  }

  function repeat(lines, at, loop, live) {
    const [, variable, , ...list] = words(lines[at]); // "#for X in ..."
    const end = block(lines, at + 1, loop, false);
    for (const item of words(substitute(list.join(" "), loop))) {
      if (live) block(lines, at + 1, { [variable]: item, ...loop }, true);
    }
    return ended(lines, end);
  }

  function choose(lines, at, loop, live) {
    let open = live; // no branch was taken yet
    for (;;) {
      const [directive, ...condition] = lines[at].split(" ");
      const holds = open && (directive === "#else" || isTrue(words(substitute(condition.join(" "), loop))));
      open &&= !holds;
      at = block(lines, at + 1, loop, holds);
      if (directive === "#else" || at === lines.length || lines[at] === "#end") return ended(lines, at);
    }
  }

  // substitute replaces names, first those in names that are put together.
  function substitute(text, loop) {
    return text
      .replace(plain, (name) => {
        const value = loop[name.slice(1)] ?? definitions[name.slice(1)];
        if (value === undefined) throw new Error(`${name} is not defined`);
        return value;
      })
      .replace(made, (name) => definitions[name.slice(2, -1)] ?? "");
  }

  include(name);
  return out.map((line) => line + "\n").join("");
}

function ended(lines, at) {
  if (lines[at] !== "#end") throw new Error("no #end");
  return at + 1;
}

const words = (text) => text.split(/\s+/).filter(Boolean);

// isTrue decides "word", "word == word" and "word != word", of which words may be empty.
function isTrue(list) {
  const at = list.findIndex((word) => word === "==" || word === "!=");
  if (at < 0) return list.length > 0;
  return (list.slice(0, at).join(" ") === list.slice(at + 1).join(" ")) === (list[at] === "==");
}
