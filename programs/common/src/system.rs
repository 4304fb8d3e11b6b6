//! Creating accounts at program derived addresses.
use crate::invoke::{invoke, Info, Meta};
use crate::{ids, sys, Account, Common, Key, Res};

const CREATE_ACCOUNT: u8 = 0;
const TRANSFER: u8 = 2;
const ALLOCATE: u8 = 8;
const ASSIGN: u8 = 1;

/// Lamports that make an account of `space` bytes exempt from rent.
pub fn minimum_balance(space: usize) -> Res<u64> {
    let rent = sys::rent()?;
    // the threshold is a float, 2.0 on every cluster
    let years = match rent.threshold_bits {
        0x4000_0000_0000_0000 => 2,
        0x3ff0_0000_0000_0000 => 1,
        _ => return Err(Common::ArithmeticOverflow.into()),
    };
    (space as u64 + 128)
        .checked_mul(rent.lamports_per_byte_year)
        .and_then(|x| x.checked_mul(years))
        .ok_or(Common::ArithmeticOverflow.into())
}

/// Checks that `account` is at the address of `seeds` under `program`; returns the bump.
pub fn check_pda(account: &Account, seeds: &[&[u8]], program: &Key) -> Res<u8> {
    let (key, bump) = sys::find_pda(seeds, program)?;
    if key == *account.key() {
        Ok(bump)
    } else {
        Err(Common::WrongPda.into())
    }
}

/// Creates `account` (a PDA of `owner`, `seeds` with the bump) with `space` zero bytes, paid by `payer`.
///
/// Somebody may have sent lamports to the address before; then it is topped up, allocated and assigned,
/// since create_account would refuse.
pub fn create_pda_account(
    payer: &Account,
    account: &Account,
    system: &Account,
    owner: &Key,
    space: usize,
    seeds: &[&[u8]],
) -> Res {
    system.check_program(&ids::SYSTEM)?;
    if *account.owner() != ids::SYSTEM || !account.is_empty() {
        return Err(Common::AlreadyInitialized.into());
    }
    let minimum = minimum_balance(space)?;
    let infos = [Info::of(payer), Info::of(account), Info::of(system)];
    let metas = [Meta::new(payer, true, true), Meta::new(account, true, true)];
    if account.lamports() == 0 {
        let mut data = [0u8; 52];
        data[0] = CREATE_ACCOUNT;
        data[4..12].copy_from_slice(&minimum.to_le_bytes());
        data[12..20].copy_from_slice(&(space as u64).to_le_bytes());
        data[20..].copy_from_slice(owner);
        return invoke(system, &metas, &infos, &data, seeds);
    }
    transfer(payer, account, system, minimum.saturating_sub(account.lamports()))?;
    let own = [Meta::new(account, true, true)];
    let mut data = [0u8; 12];
    data[0] = ALLOCATE;
    data[4..].copy_from_slice(&(space as u64).to_le_bytes());
    invoke(system, &own, &infos, &data, seeds)?;
    let mut data = [0u8; 36];
    data[0] = ASSIGN;
    data[4..].copy_from_slice(owner);
    invoke(system, &own, &infos, &data, seeds)
}

/// Moves lamports from a signer.
pub fn transfer(from: &Account, to: &Account, system: &Account, lamports: u64) -> Res {
    if lamports == 0 {
        return Ok(());
    }
    system.check_program(&ids::SYSTEM)?;
    let mut data = [0u8; 12];
    data[0] = TRANSFER;
    data[4..].copy_from_slice(&lamports.to_le_bytes());
    let metas = [Meta::new(from, true, true), Meta::new(to, false, true)];
    invoke(system, &metas, &[Info::of(from), Info::of(to), Info::of(system)], &data, &[])
}
