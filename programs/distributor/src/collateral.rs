//! The airdrop's collateral. Every call of the token programs stands here.
use crate::state::{Airdrop, AIRDROP_SEED};
use psyche_common::{ids, sys, token, Account, Common, Key, Res};

/// The accounts that a payment from the vault touches.
pub struct Payment<'a> {
    pub airdrop: &'a Account,
    pub airdrop_collateral: &'a Account,
    pub collateral_mint: &'a Account,
    pub to: &'a Account,
    pub token_program: &'a Account,
}

/// Checks that the mint's tokens behave, and that `vault` is where the airdrop's would be; it need not exist.
pub fn check_new_vault(vault: &Account, airdrop: &Account, mint: &Account) -> Res {
    let seeds: [&[u8]; 3] = [airdrop.key(), token::read_mint(mint)?.program, mint.key()];
    vault.check_key(&sys::find_pda(&seeds, &ids::ASSOCIATED_TOKEN)?.0)
}

impl Payment<'_> {
    /// Checks mint, vault, and that only its owner can spend from `to`; `pay` checks the rest.
    /// Returns what the vault holds and who owns `to`.
    pub fn check(&self, airdrop: &Airdrop) -> Res<(u64, &'static Key)> {
        let mint = airdrop.collateral_mint();
        self.collateral_mint.check_key(mint)?;
        let vault = token::check_associated(self.airdrop_collateral, self.airdrop.key(), mint)?;
        let to = token::read(self.to)?;
        if to.has_delegate {
            return Err(Common::WrongAccount.into());
        }
        Ok((vault.amount, to.owner))
    }

    /// Pays; the airdrop's address signs.
    pub fn pay(&self, airdrop: &Airdrop, amount: u64) -> Res {
        let (id, bump) = (airdrop.id().to_le_bytes(), [airdrop.bump()]);
        let seeds: [&[u8]; 3] = [AIRDROP_SEED, &id, &bump];
        let transfer = token::Transfer {
            from: self.airdrop_collateral,
            mint: self.collateral_mint,
            to: self.to,
            authority: self.airdrop,
            token_program: self.token_program,
        };
        transfer.send(amount, &seeds)
    }
}
