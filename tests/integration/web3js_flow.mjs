// What a stranger's dApp does against `run-manager localnet`, with @solana/web3.js 1.x.
// Usage: node web3js_flow.mjs RPC_URL   (NODE_PATH or PSYCHE_WEB3JS: directory of node_modules)
// Prints one line per flow and one JSON line last; exits 1 when a flow failed.
import { createRequire } from "node:module";
import path from "node:path";

const modules = process.env.PSYCHE_WEB3JS ?? path.join(process.cwd(), "node_modules");
const require = createRequire(path.join(modules, "anchor.js"));
const web3 = require("@solana/web3.js");
let token = null;
try { token = require("@solana/spl-token"); } catch (error) { if (error.code !== "MODULE_NOT_FOUND") throw error; }

const connection = new web3.Connection(process.argv[2], "confirmed");
const payer = web3.Keypair.generate();
const results = {};

function check(condition, message) {
  if (!condition) throw new Error(message);
}

function withDeadline(promise, what, milliseconds = 15000) {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`${what}: nothing within ${milliseconds} ms`)), milliseconds);
  });
  return Promise.race([promise, late]).finally(() => clearTimeout(timer));
}

async function flow(name, action) {
  const start = performance.now();
  try {
    await withDeadline(action(), name, 30000);
    results[name] = "ok";
  } catch (error) {
    results[name] = `${error.message}`;
  }
  console.log(`${results[name] === "ok" ? "ok  " : "FAIL"} ${name} ${(performance.now() - start).toFixed(0)} ms` +
    (results[name] === "ok" ? "" : `: ${results[name]}`));
}

const transferTo = (to, lamports) =>
  new web3.Transaction().add(
    web3.SystemProgram.transfer({ fromPubkey: payer.publicKey, toPubkey: to, lamports }));

await flow("getVersion, getGenesisHash, getEpochInfo, getSlot, getBlockHeight", async () => {
  check((await connection.getVersion())["solana-core"], "no version");
  check((await connection.getGenesisHash()).length >= 32, "no genesis hash");
  check((await connection.getEpochInfo()).slotsInEpoch > 0, "no epoch");
  check((await connection.getSlot("processed")) >= (await connection.getBlockHeight("finalized")), "slot order");
});

await flow("requestAirdrop, confirmTransaction (signatureSubscribe)", async () => {
  const signature = await connection.requestAirdrop(payer.publicKey, 10 * web3.LAMPORTS_PER_SOL);
  const latest = await connection.getLatestBlockhash();
  const { value } = await connection.confirmTransaction({ signature, ...latest });
  check(value.err === null, "airdrop failed");
  check((await connection.getBalance(payer.publicKey)) === 10 * web3.LAMPORTS_PER_SOL, "balance");
});

await flow("sendAndConfirmTransaction", async () => {
  const to = web3.Keypair.generate().publicKey;
  const signature = await web3.sendAndConfirmTransaction(connection, transferTo(to, 1_000_000), [payer]);
  check((await connection.getBalance(to)) === 1_000_000, "balance");
  const [status] = (await connection.getSignatureStatuses([signature])).value;
  check(["confirmed", "finalized"].includes(status.confirmationStatus), "status");
});

await flow("sendAndConfirmTransaction at finalized", async () => {
  const to = web3.Keypair.generate().publicKey;
  await web3.sendAndConfirmTransaction(connection, transferTo(to, 1_000_000), [payer], { commitment: "finalized" });
});

await flow("versioned transaction (v0), sendTransaction, getTransaction, getParsedTransaction", async () => {
  const to = web3.Keypair.generate().publicKey;
  const latest = await connection.getLatestBlockhash();
  const message = new web3.TransactionMessage({
    payerKey: payer.publicKey,
    recentBlockhash: latest.blockhash,
    instructions: transferTo(to, 2_000_000).instructions,
  }).compileToV0Message();
  const transaction = new web3.VersionedTransaction(message);
  transaction.sign([payer]);
  const signature = await connection.sendTransaction(transaction);
  await connection.confirmTransaction({ signature, ...latest });
  const options = { commitment: "confirmed", maxSupportedTransactionVersion: 0 };
  const landed = await connection.getTransaction(signature, options);
  check(landed.version === 0 && landed.meta.err === null && landed.meta.fee === 5000, "getTransaction");
  check(landed.transaction.message.staticAccountKeys[0].equals(payer.publicKey), "account keys");
  const parsed = await connection.getParsedTransaction(signature, options);
  check(parsed.transaction.message.accountKeys[0].signer === true, "getParsedTransaction");
  const list = await connection.getSignaturesForAddress(to, {}, "confirmed");
  check(list.length === 1 && list[0].signature === signature, "getSignaturesForAddress");
});

await flow("address lookup table: create, extend, use", async () => {
  const slot = await connection.getSlot("finalized");
  const [create, table] = web3.AddressLookupTableProgram.createLookupTable(
    { authority: payer.publicKey, payer: payer.publicKey, recentSlot: slot });
  const to = web3.Keypair.generate().publicKey;
  const extend = web3.AddressLookupTableProgram.extendLookupTable(
    { payer: payer.publicKey, authority: payer.publicKey, lookupTable: table, addresses: [to] });
  await web3.sendAndConfirmTransaction(connection, new web3.Transaction().add(create, extend), [payer]);
  await new Promise((resolve) => setTimeout(resolve, 900)); // a table can be used in a later slot
  const account = (await connection.getAddressLookupTable(table)).value;
  check(account.state.addresses[0].equals(to), "table");
  const latest = await connection.getLatestBlockhash();
  const transaction = new web3.VersionedTransaction(new web3.TransactionMessage({
    payerKey: payer.publicKey, recentBlockhash: latest.blockhash,
    instructions: transferTo(to, 3_000_000).instructions,
  }).compileToV0Message([account]));
  transaction.sign([payer]);
  const signature = await connection.sendTransaction(transaction);
  await connection.confirmTransaction({ signature, ...latest });
  check((await connection.getBalance(to)) === 3_000_000, "balance");
  const landed = await connection.getTransaction(
    signature, { commitment: "confirmed", maxSupportedTransactionVersion: 0 });
  check(landed.meta.loadedAddresses.writable[0].equals(to), "loaded addresses");
});

await flow("onAccountChange", async () => {
  const to = web3.Keypair.generate().publicKey;
  let id;
  const seen = new Promise((resolve) => {
    id = connection.onAccountChange(to, (info, context) => resolve([info, context]), { commitment: "confirmed" });
  });
  await new Promise((resolve) => setTimeout(resolve, 300)); // web3.js does not say when it is subscribed
  await web3.sendAndConfirmTransaction(connection, transferTo(to, 4_000_000), [payer]);
  const [info, context] = await withDeadline(seen, "accountNotification");
  check(info.lamports === 4_000_000 && context.slot > 0, "notification");
  await connection.removeAccountChangeListener(id);
});

await flow("onLogs (all, and by mention)", async () => {
  const ids = [];
  const wait = (filter) => new Promise((resolve) => ids.push(connection.onLogs(filter, resolve, "processed")));
  const seen = [wait("all"), wait(payer.publicKey)];
  await new Promise((resolve) => setTimeout(resolve, 300));
  const to = web3.Keypair.generate().publicKey;
  const signature = await web3.sendAndConfirmTransaction(connection, transferTo(to, 1_000_000), [payer]);
  for (const logs of await withDeadline(Promise.all(seen), "logsNotification")) {
    check(logs.signature === signature && logs.logs.length >= 2 && logs.err === null, "logs");
  }
  for (const id of ids) await connection.removeOnLogsListener(id);
});

await flow("onSlotChange, onRootChange", async () => {
  let slots, roots;
  const slot = new Promise((resolve) => { slots = connection.onSlotChange(resolve); });
  const root = new Promise((resolve) => { roots = connection.onRootChange(resolve); });
  const info = await withDeadline(slot, "slotNotification");
  check(info.parent === info.slot - 1 && info.root <= info.parent, "slot");
  check((await withDeadline(root, "rootNotification")) > 0, "root");
  await connection.removeSlotChangeListener(slots);
  await connection.removeRootChangeListener(roots);
});

await flow("createAccount, getProgramAccounts (dataSize, memcmp, dataSlice), onProgramAccountChange", async () => {
  const owner = web3.Keypair.generate().publicKey;
  let listener;
  const seen = new Promise((resolve) => {
    listener = connection.onProgramAccountChange(owner, resolve, { commitment: "confirmed", filters: [{ dataSize: 24 }] });
  });
  await new Promise((resolve) => setTimeout(resolve, 300));
  const accounts = [16, 24].map((space) => ({ keypair: web3.Keypair.generate(), space }));
  const transaction = new web3.Transaction();
  for (const { keypair, space } of accounts) {
    const lamports = await connection.getMinimumBalanceForRentExemption(space);
    transaction.add(web3.SystemProgram.createAccount(
      { fromPubkey: payer.publicKey, newAccountPubkey: keypair.publicKey, lamports, space, programId: owner }));
  }
  await web3.sendAndConfirmTransaction(connection, transaction, [payer, ...accounts.map((a) => a.keypair)]);
  check((await connection.getProgramAccounts(owner)).length === 2, "all");
  const bySize = await connection.getProgramAccounts(owner, { filters: [{ dataSize: 24 }] });
  check(bySize.length === 1 && bySize[0].pubkey.equals(accounts[1].keypair.publicKey), "dataSize");
  const byBytes = await connection.getProgramAccounts(
    owner, { filters: [{ memcmp: { offset: 0, bytes: "1" } }], dataSlice: { offset: 0, length: 4 } });
  check(byBytes.length === 2 && byBytes[0].account.data.length === 4, "memcmp, dataSlice");
  const notified = await withDeadline(seen, "programNotification");
  check(notified.accountId.equals(accounts[1].keypair.publicKey), "programNotification");
  await connection.removeProgramAccountChangeListener(listener);
  const several = await connection.getMultipleAccountsInfo([...accounts.map((a) => a.keypair.publicKey), owner]);
  check(several[0].data.length === 16 && several[2] === null, "getMultipleAccountsInfo");
});

await flow("simulateTransaction, getFeeForMessage", async () => {
  const latest = await connection.getLatestBlockhash();
  const message = new web3.TransactionMessage({
    payerKey: payer.publicKey, recentBlockhash: latest.blockhash,
    instructions: transferTo(web3.Keypair.generate().publicKey, 1_000_000).instructions,
  }).compileToV0Message();
  const { value } = await connection.simulateTransaction(new web3.VersionedTransaction(message));
  check(value.err === null && value.unitsConsumed > 0, "simulate");
  check((await connection.getFeeForMessage(message)).value === 5000, "fee");
});

await flow("errors: preflight failure, program error, expired blockhash, bad signature", async () => {
  const to = web3.Keypair.generate().publicKey;
  try {
    await web3.sendAndConfirmTransaction(connection, transferTo(to, 1e15), [payer]);
    check(false, "an overdraft went through");
  } catch (error) {
    check(error instanceof web3.SendTransactionError, `unexpected ${error}`);
    check(error.message.includes("custom program error: 0x1"), `unexpected ${error.message}`);
    check((await error.getLogs(connection)).some((line) => line.includes("insufficient lamports")), "no logs");
  }
  const old = transferTo(to, 1_000_000);
  old.recentBlockhash = web3.Keypair.generate().publicKey.toBase58();
  old.feePayer = payer.publicKey;
  old.sign(payer);
  const refused = await connection.sendRawTransaction(old.serialize()).catch((error) => error);
  check(refused.message.includes("Blockhash not found"), `unexpected ${refused.message}`);
  const failed = transferTo(to, 1e15);
  const latest = await connection.getLatestBlockhash();
  failed.recentBlockhash = latest.blockhash;
  failed.feePayer = payer.publicKey;
  failed.sign(payer);
  const signature = await connection.sendRawTransaction(failed.serialize(), { skipPreflight: true });
  // web3.js rejects with the bare err when the status was there before the subscription
  const err = await connection.confirmTransaction({ signature, ...latest }).then((r) => r.value.err, (e) => e);
  check(JSON.stringify(err) === '{"InstructionError":[0,{"Custom":1}]}', `unexpected ${JSON.stringify(err)}`);
  const bytes = failed.serialize();
  bytes[5] ^= 1;
  const forged = await connection.sendRawTransaction(bytes).catch((error) => error);
  check(forged.message.includes("signature verification"), `unexpected ${forged.message}`);
});

if (token !== null) {
  await flow("spl-token: createMint, mintTo, transfer, balances, jsonParsed", async () => {
    const mint = await token.createMint(connection, payer, payer.publicKey, null, 6);
    const own = await token.getOrCreateAssociatedTokenAccount(connection, payer, mint, payer.publicKey);
    const friend = web3.Keypair.generate().publicKey;
    const theirs = await token.getOrCreateAssociatedTokenAccount(connection, payer, mint, friend);
    await token.mintTo(connection, payer, mint, own.address, payer, 5_000_000n);
    const signature = await token.transfer(connection, payer, own.address, theirs.address, payer, 1_250_000n);
    const balance = await connection.getTokenAccountBalance(theirs.address);
    check(balance.value.uiAmountString === "1.25", "getTokenAccountBalance");
    check((await connection.getTokenSupply(mint)).value.amount === "5000000", "getTokenSupply");
    const parsed = await connection.getParsedTokenAccountsByOwner(friend, { mint });
    check(parsed.value[0].account.data.parsed.info.tokenAmount.uiAmount === 1.25, "jsonParsed account");
    const info = await connection.getParsedAccountInfo(mint);
    check(info.value.data.parsed.info.decimals === 6, "jsonParsed mint");
    check((await connection.getTokenAccountsByOwner(friend, { programId: token.TOKEN_PROGRAM_ID })).value.length === 1,
      "getTokenAccountsByOwner");
    const largest = await connection.getTokenLargestAccounts(mint);
    check(largest.value[0].amount === "3750000", "getTokenLargestAccounts");
    const landed = await connection.getTransaction(signature, { commitment: "confirmed", maxSupportedTransactionVersion: 0 });
    check(landed.meta.postTokenBalances.length === 2, "token balances");
  });
}

console.log(JSON.stringify({ web3: require("@solana/web3.js/package.json").version, flows: results }));
process.exit(Object.values(results).every((result) => result === "ok") ? 0 : 1);
