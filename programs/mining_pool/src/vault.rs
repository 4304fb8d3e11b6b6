//! Everything that touches tokens. A pool has two vaults: deposits go into one, repayments into the other.
use psyche_common::{ids, token, Account, Common, Key, Res};

/// Who holds a vault and may pay from it: a derived address of this program.
pub struct Holder<'a> {
    pub account: &'a Account,
    pub seeds: &'a [&'a [u8]],
}

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
    c.mint.check_owner(&ids::TOKEN)?;
    c.token_program.check_program(&ids::TOKEN)?;
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
    check(c.vault, c.owner.key(), c.mint.key())?;
    Ok(())
}

/// What the vault at `address` holds, which is owned by `owner`.
pub fn read_amount(vault: &Account, address: &Key, owner: &Account, mint: &Key) -> Res<u64> {
    vault.check_key(address)?;
    check(vault, owner.key(), mint)
}

/// The token account belongs to `owner`, is of this mint and nobody else may spend from it; its amount.
pub fn check(account: &Account, owner: &Key, mint: &Key) -> Res<u64> {
    let held = token::read(account)?;
    if held.owner == owner && held.mint == mint && !held.has_delegate {
        Ok(held.amount)
    } else {
        Err(Common::WrongAccount.into())
    }
}

/// A user's tokens into a vault; the user has signed.
pub fn receive(from: &Account, to: &Account, user: &Account, token_program: &Account, amount: u64) -> Res {
    token::transfer(from, to, user, token_program, amount, &[])
}

/// Tokens out of a vault.
pub fn pay(from: &Account, to: &Account, holder: &Holder, token_program: &Account, amount: u64) -> Res {
    token::transfer(from, to, holder.account, token_program, amount, holder.seeds)
}
