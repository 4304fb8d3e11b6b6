//! SPL Token: reading accounts, paying from a vault.
use crate::invoke::{invoke, Info, Meta};
use crate::{ids, Account, Common, Key, Res};

const TRANSFER: u8 = 3;
const ACCOUNT_LEN: usize = 165;

/// A token account's fields that we look at.
pub struct TokenAccount {
    pub mint: &'static Key,
    pub owner: &'static Key,
    pub amount: u64,
    pub has_delegate: bool,
}

/// Reads a token account of the SPL Token program.
pub fn read(account: &Account) -> Res<TokenAccount> {
    account.check_owner(&ids::TOKEN)?;
    let data = account.data();
    if data.len() != ACCOUNT_LEN || data[108] != 1 {
        return Err(Common::WrongAccount.into());
    }
    let key = |at: usize| -> &'static Key { unsafe { &*data.as_ptr().add(at).cast() } };
    let mut amount = [0u8; 8];
    amount.copy_from_slice(&data[64..72]);
    Ok(TokenAccount {
        mint: key(0),
        owner: key(32),
        amount: u64::from_le_bytes(amount),
        has_delegate: data[72..76] != [0; 4],
    })
}

/// Pays `amount` base units; `owner` is a PDA that signs with `seeds`.
pub fn transfer(
    from: &Account,
    to: &Account,
    owner: &Account,
    token: &Account,
    amount: u64,
    seeds: &[&[u8]],
) -> Res {
    token.check_program(&ids::TOKEN)?;
    let mut data = [TRANSFER; 9];
    data[1..].copy_from_slice(&amount.to_le_bytes());
    let metas = [Meta::new(from, false, true), Meta::new(to, false, true), Meta::new(owner, true, false)];
    let infos = [Info::of(from), Info::of(to), Info::of(owner), Info::of(token)];
    invoke(token, &metas, &infos, &data, seeds)
}

/// Creates the associated token account of `owner` for `mint`, or leaves it as it is.
pub fn create_associated(
    payer: &Account,
    account: &Account,
    owner: &Account,
    mint: &Account,
    system: &Account,
    token: &Account,
    associated: &Account,
) -> Res {
    associated.check_program(&ids::ASSOCIATED_TOKEN)?;
    const CREATE_IDEMPOTENT: [u8; 1] = [1];
    let metas = [
        Meta::new(payer, true, true),
        Meta::new(account, false, true),
        Meta::new(owner, false, false),
        Meta::new(mint, false, false),
        Meta::new(system, false, false),
        Meta::new(token, false, false),
    ];
    let infos = [
        Info::of(payer),
        Info::of(account),
        Info::of(owner),
        Info::of(mint),
        Info::of(system),
        Info::of(token),
        Info::of(associated),
    ];
    invoke(associated, &metas, &infos, &CREATE_IDEMPOTENT, &[])
}
