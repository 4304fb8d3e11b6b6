use crate::accounts::pool_create::Accounts;
use crate::state::{Pool, POOL_SEED};
use crate::vault;
use psyche_common::system::{check_pda, create_pda_account};
use psyche_common::{Res, Text};

pub fn process(a: &Accounts, index: u64, metadata: Text) -> Res {
    let number = index.to_le_bytes();
    let bump = check_pda(&a.pool, &[POOL_SEED, &number], a.program)?;
    let seeds: [&[u8]; 3] = [POOL_SEED, &number, &[bump]];
    create_pda_account(&a.payer, &a.pool, &a.system_program, a.program, Pool::SIZE, &seeds)?;
    let (authority, mint, vault) = (a.authority.key(), a.collateral_mint.key(), a.pool_collateral.key());
    Pool::write(&a.pool, bump, index, authority, mint, vault)?.set_metadata(metadata.0)?;
    vault::create(&vault::Creation {
        payer: &a.payer,
        vault: &a.pool_collateral,
        owner: &a.pool,
        mint: &a.collateral_mint,
        associated_token_program: &a.associated_token_program,
        token_program: &a.token_program,
        system_program: &a.system_program,
    })
}
