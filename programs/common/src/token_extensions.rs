//! What Token-2022 puts behind mints and token accounts, and which of it we take.
//!
//! Taken is what leaves balances alone: metadata, groups, an owner that cannot change. Everything else is
//! refused by name, whatever its settings are, since its authority can change them after the money is in.
use crate::{Common, Res};

/// Where a token account ends, and the byte that says what an extended account is.
pub const BASE_LEN: usize = 165;
const FIRST: usize = BASE_LEN + 1;
/// Token-2022 pads extended accounts so that none has the length of a multisig.
pub const MULTISIG_LEN: usize = 355;

pub const IS_MINT: u8 = 1;
pub const IS_ACCOUNT: u8 = 2;

const IMMUTABLE_OWNER: u16 = 7;
const MEMO_TRANSFER: u16 = 8;
const CPI_GUARD: u16 = 11;

/// What a token account's owner has switched on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Switches {
    pub memo_required: bool,
    pub cpi_guard: bool,
}

/// Checks the extensions in the `data` of a mint or token account; `kind` is what it must be.
pub fn check_extensions(data: &[u8], kind: u8) -> Res<Switches> {
    if data.len() <= BASE_LEN || data.len() == MULTISIG_LEN || data[BASE_LEN] != kind {
        return Err(Common::WrongAccount.into());
    }
    let mut switches = Switches::default();
    let mut rest = &data[FIRST..];
    while let Some((head, tail)) = rest.split_first_chunk::<4>() {
        let number = u16::from_le_bytes([head[0], head[1]]);
        if number == 0 {
            break;
        }
        let len = u16::from_le_bytes([head[2], head[3]]) as usize;
        let value = tail.get(..len).ok_or(Common::WrongAccount)?;
        let is_on = value.first().is_some_and(|byte| *byte != 0);
        match number {
            MEMO_TRANSFER => switches.memo_required = is_on,
            CPI_GUARD => switches.cpi_guard = is_on,
            _ => check_kind(number)?,
        }
        rest = &tail[len..];
    }
    Ok(switches)
}

/// The numbers are Token-2022's; a mint's extension and what it leaves in token accounts have one name.
fn check_kind(number: u16) -> Res {
    let refusal = match number {
        // pointer to metadata, metadata, pointers to a group and a member, group, member
        IMMUTABLE_OWNER | 18..=23 => return Ok(()),
        1 | 2 => Common::MintTransferFee,
        3 => Common::MintCloseAuthority,
        4 | 5 | 16 | 17 | 24 => Common::MintConfidentialTransfer,
        6 => Common::MintDefaultAccountState,
        9 | 13 => Common::MintNonTransferable,
        10 => Common::MintInterestBearing,
        12 => Common::MintPermanentDelegate,
        14 | 15 => Common::MintTransferHook,
        25 => Common::MintScaledUiAmount,
        26 | 27 => Common::MintPausable,
        _ => Common::TokenExtensionUnknown,
    };
    Err(refusal.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn account(kind: u8, extensions: &[u8]) -> Vec<u8> {
        [&[0; BASE_LEN], &[kind][..], extensions].concat()
    }

    fn entry(number: u16, value: &[u8]) -> Vec<u8> {
        [&number.to_le_bytes()[..], &(value.len() as u16).to_le_bytes(), value].concat()
    }

    #[test]
    fn what_leaves_balances_alone_is_taken() {
        for number in [7, 18, 19, 20, 21, 22, 23] {
            let data = account(IS_MINT, &entry(number, &[1; 64]));
            assert_eq!(check_extensions(&data, IS_MINT), Ok(Switches::default()));
        }
    }

    #[test]
    fn everything_else_is_refused_wherever_it_stands() {
        for number in (1..=6).chain(9..=10).chain(12..=17).chain(24..=40).chain([999, u16::MAX]) {
            for before in [vec![], entry(18, &[0; 64])] {
                let data = account(IS_MINT, &[before, entry(number, &[0; 8])].concat());
                assert!(check_extensions(&data, IS_MINT).is_err(), "{number}");
            }
        }
    }

    #[test]
    fn switches_are_read() {
        let both = [entry(7, &[]), entry(8, &[1]), entry(11, &[1])].concat();
        let switches = check_extensions(&account(IS_ACCOUNT, &both), IS_ACCOUNT);
        assert_eq!(switches, Ok(Switches { memo_required: true, cpi_guard: true }));
        let off = [entry(8, &[0]), entry(11, &[0])].concat();
        assert_eq!(check_extensions(&account(IS_ACCOUNT, &off), IS_ACCOUNT), Ok(Switches::default()));
    }

    #[test]
    fn damaged_bytes_are_refused() {
        let entry = entry(18, &[0; 64]);
        assert!(check_extensions(&account(IS_MINT, &entry[..entry.len() - 1]), IS_MINT).is_err());
        assert!(check_extensions(&account(IS_ACCOUNT, &entry), IS_MINT).is_err());
        assert!(check_extensions(&[1; BASE_LEN], IS_MINT).is_err());
        assert!(check_extensions(&account(IS_MINT, &[0; MULTISIG_LEN - FIRST]), IS_MINT).is_err());
    }

    #[test]
    fn the_padding_ends_the_list() {
        let padded = [entry(18, &[0; 64]), vec![0; 7]].concat();
        assert_eq!(check_extensions(&account(IS_MINT, &padded), IS_MINT), Ok(Switches::default()));
    }
}
