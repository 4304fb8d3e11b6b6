//! A pool has two vaults: deposits go into one, repayments into the other.
use psyche_common::{ids, token, Account, Key, Res};

/// The accounts that creating a vault takes.
pub struct Creation<'a> {
    pub payer: &'a Account,
    pub vault: &'a Account,
    pub owner: &'a Account,
    pub mint: &'a Account,
    pub associated_token_program: &'a Account,
    pub token_program: &'a Account,
    pub system_program: &'a Account,
}

/// Creates the associated token account of `owner`, or takes the one that somebody made before.
pub fn create(c: &Creation) -> Res {
    c.system_program.check_program(&ids::SYSTEM)?;
    token::create_associated(
        c.payer,
        c.vault,
        c.owner,
        c.mint,
        c.system_program,
        c.token_program,
        c.associated_token_program,
    )?;
    // an account that somebody made before can be frozen by now
    token::check_holds(c.vault, c.owner.key(), c.mint.key())?;
    Ok(())
}

/// What the vault at `address` holds, which is owned by `owner`.
pub fn read_amount(vault: &Account, address: &Key, owner: &Account, mint: &Key) -> Res<u64> {
    vault.check_key(address)?;
    Ok(token::check_holds(vault, owner.key(), mint)?.amount)
}
