//! Program ids. Whoever deploys under other addresses runs `programs/build/set_ids.py`, which rewrites the
//! first of these, and then `make programs`; clients read them from the IDL.
use crate::Key;

pub const COORDINATOR: Key = decode("A1RZq6z969z12MPd4weHdtw13EzPLLy7wP7ykJ9wUuSB");
pub const AUTHORIZER: Key = decode("3LcJf93KBiWXpANsYGioDmJg2VPCCbXpQPbSYos5YDoc");
pub const TREASURER: Key = decode("CLSvL92iVeCLR24Y7TuapxsViL5PVyqC3CLxfGXqK72h");
pub const DISTRIBUTOR: Key = decode("7YrG8LhQEe2KMEXsPEtMUw1CHnhcLieGNJCuzYfErm7s");
pub const MINING_POOL: Key = decode("EoviLZzw1yrYn12ABkt6MhPrzPZrjGwBYDh1r2ZBuhYx");

pub const SYSTEM: Key = [0; 32];
pub const TOKEN: Key = decode("TokenkegQfeZyiNwAJbNbGKPFXCWuBvf9Ss623VQ5DA");
pub const TOKEN_2022: Key = decode("TokenzQdBNbLqP5VEhdkAS6EPFLC1PHnBqCXEpPxuEb");
pub const ASSOCIATED_TOKEN: Key = decode("ATokenGPvbdGVxr1b2hvZbsiqW5xWH25efTNsLJA8knL");
pub const SLOT_HASHES: Key = decode("SysvarS1otHashes111111111111111111111111111");

/// Base58 at compile time.
const fn decode(text: &str) -> Key {
    let text = text.as_bytes();
    let mut key = [0u8; 32];
    let mut i = 0;
    while i < text.len() {
        let mut carry = digit(text[i]);
        let mut j = 32;
        while j > 0 {
            j -= 1;
            carry += key[j] as u32 * 58;
            key[j] = carry as u8;
            carry >>= 8;
        }
        assert!(carry == 0, "longer than 32 bytes");
        i += 1;
    }
    key
}

const fn digit(character: u8) -> u32 {
    const ALPHABET: &[u8] = b"123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz";
    let mut i = 0;
    while i < ALPHABET.len() {
        if ALPHABET[i] == character {
            return i as u32;
        }
        i += 1;
    }
    panic!("not base58")
}
