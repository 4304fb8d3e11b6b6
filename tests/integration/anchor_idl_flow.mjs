// What @coral-xyz/anchor makes of our IDLs of the 0.30 shape.
// Usage: node anchor_idl_flow.mjs CASES.json   (PSYCHE_ANCHOR_JS: directory of node_modules)
// CASES is what test_idl_anchor_js.py writes: for each program its IDL and instructions, accounts and events
// with their values. Prints one JSON line: what was encoded and decoded of each, in the same order.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import path from "node:path";

const require = createRequire(path.join(process.env.PSYCHE_ANCHOR_JS, "anchor.js"));
const anchor = require("@coral-xyz/anchor");
const { BN, web3 } = anchor;

const WIDE = new Set(["u64", "i64", "u128"]);
const NUMBERS = new Set(["u8", "u16", "u32"]);

// ---- values: as in tests/support/idl_values.py; a struct is the list of its fields' values -----------------

const fieldsOf = (types, name) => types.find((type) => type.name === name).type.fields;

function toJs(types, kind, value) {
  if (WIDE.has(kind)) return new BN(value);
  if (NUMBERS.has(kind)) return Number(value);
  if (kind === "pubkey") return new web3.PublicKey(value);
  if (kind === "bytes") return Buffer.from(value, "hex");
  if (typeof kind === "string") return value;
  if (kind.option !== undefined) return value === null ? null : toJs(types, kind.option, value);
  if (kind.vec !== undefined) return value.map((item) => toJs(types, kind.vec, item));
  if (kind.array !== undefined) return value.map((item) => toJs(types, kind.array[0], item));
  const fields = fieldsOf(types, kind.defined.name);
  return Object.fromEntries(fields.map((field, i) => [field.name, toJs(types, field.type, value[i])]));
}

function fromJs(types, kind, value) {
  if (WIDE.has(kind) || NUMBERS.has(kind)) return value.toString();
  if (kind === "pubkey") return value.toBase58();
  if (kind === "bytes") return Buffer.from(value).toString("hex");
  if (typeof kind === "string") return value;
  if (kind.option !== undefined) return value === null ? null : fromJs(types, kind.option, value);
  if (kind.vec !== undefined) return value.map((item) => fromJs(types, kind.vec, item));
  if (kind.array !== undefined) return Array.from(value, (item) => fromJs(types, kind.array[0], item));
  return structFromJs(types, kind.defined.name, value);
}

function structFromJs(types, name, value) {
  const fields = fieldsOf(types, name);
  const names = Object.keys(value);
  if (names.length !== fields.length) throw new Error(`${name}: ${names}`);
  return fields.map((field) => fromJs(types, field.type, value[field.name]));
}

// ---- cases -------------------------------------------------------------------------------------------------

// nothing is sent: the port is closed, and accountsStrict looks nothing up
const provider = { connection: new web3.Connection("http://127.0.0.1:9"), publicKey: web3.PublicKey.default };

async function encode(program, { index, accounts, args }) {
  const { idl } = program;
  const entry = idl.instructions[index];
  const values = entry.args.map((arg, i) => toJs(idl.types, arg.type, args[i]));
  const keys = entry.accounts.map((account, i) => [account.name, new web3.PublicKey(accounts[i])]);
  const made = await program.methods[entry.name](...values).accountsStrict(Object.fromEntries(keys)).instruction();
  return {
    program: made.programId.toBase58(),
    data: made.data.toString("hex"),
    accounts: made.keys.map((meta) => [meta.pubkey.toBase58(), meta.isSigner, meta.isWritable]),
  };
}

function decodeAccount(program, { index, data }) {
  const { name } = program.idl.accounts[index];
  return structFromJs(program.idl.types, name, program.coder.accounts.decode(name, Buffer.from(data, "base64")));
}

function decodeEvents(program, { logs }) {
  const parser = new anchor.EventParser(program.programId, program.coder);
  return [...parser.parseLogs(logs)].map(({ name, data }) => [name, structFromJs(program.idl.types, name, data)]);
}

async function run({ idl, instructions, accounts, events }) {
  const program = new anchor.Program(idl, provider);
  const encoded = [];
  for (const entry of instructions) encoded.push(await encode(program, entry));
  return {
    instructions: encoded,
    accounts: accounts.map((entry) => decodeAccount(program, entry)),
    events: events.map((entry) => decodeEvents(program, entry)),
    errors: program.idl.errors.length,
  };
}

const results = {};
for (const [name, entry] of Object.entries(JSON.parse(readFileSync(process.argv[2], "utf8")))) {
  results[name] = await run(entry);
}
console.log(JSON.stringify(results));
