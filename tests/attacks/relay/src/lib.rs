//! An attacker's program: calls whatever programs it is told to, one after the other, in one instruction.
//!
//! Built by `programs/build/sbf_build.py --manifest tests/attacks/relay/Cargo.toml --out tests/attacks/relay.so`.
//! Data: the bump of its own address (seed "relay"), the number of calls, and for each call the place of the
//! program's account, the number of metas, two bytes each (place, flags: 1 signs, 2 writable), the length of
//! the data as u16, and the data. A call of the program in place 255 is none: its data goes into the account
//! of its first meta, which the attacker owns. The attacker's own address signs wherever it stands.
#![cfg_attr(target_os = "solana", no_std)]

use psyche_common::account::MAX_ACCOUNTS;
use psyche_common::invoke::{invoke, Info, Meta};
use psyche_common::{Account, Common, Decode, Input, Reader, Res};

const SEED: &[u8] = b"relay";
const WRITE: u8 = 255;
const SIGNS: u8 = 1;
const WRITABLE: u8 = 2;

fn get(input: &Input, place: u8) -> Res<Account> {
    Ok(input.accounts.get(place as usize).copied().flatten().ok_or(Common::MissingAccount)?)
}

#[allow(dead_code)]
fn dispatch(input: &Input) -> Res {
    let mut reader = Reader::new(input.data);
    let bump = [u8::decode(&mut reader)?];
    for _ in 0..u8::decode(&mut reader)? {
        call(input, &mut reader, &[SEED, &bump])?;
    }
    reader.finish()
}

#[inline(never)]
fn call(input: &Input, reader: &mut Reader, seeds: &[&[u8]]) -> Res {
    let program = u8::decode(reader)?;
    let num = u8::decode(reader)? as usize;
    let places = reader.take(2 * num)?;
    let len = u16::decode(reader)? as usize;
    let data = reader.take(len)?;
    if num == 0 || num > MAX_ACCOUNTS {
        return Err(Common::MissingAccount.into());
    }
    let first = get(input, places[0])?;
    if program == WRITE {
        first.data_mut()[..len].copy_from_slice(data);
        return Ok(());
    }
    let program = get(input, program)?;
    for pair in places.chunks_exact(2) {
        get(input, pair[0])?;
    }
    let metas: [Meta; MAX_ACCOUNTS] = core::array::from_fn(|i| {
        let (place, flags) = places.get(2 * i..2 * i + 2).map_or((places[0], 0), |pair| (pair[0], pair[1]));
        let account = get(input, place).unwrap_or(first);
        Meta::new(&account, flags & SIGNS != 0, flags & WRITABLE != 0)
    });
    let infos: [Info; MAX_ACCOUNTS] = core::array::from_fn(|i| Info::of(&get(input, i as u8).unwrap_or(first)));
    invoke(&program, &metas[..num], &infos, data, seeds)
}

#[cfg(target_os = "solana")]
psyche_common::entrypoint!();
