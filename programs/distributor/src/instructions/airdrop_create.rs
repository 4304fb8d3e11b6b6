use crate::accounts::airdrop_create::Accounts;
use crate::collateral::check_new_vault;
use crate::state::{Airdrop, AirdropList, AIRDROP_SEED};
use psyche_common::system::{check_pda, create_pda_account};
use psyche_common::{token, Raw, Res, Text};

pub fn process(
    a: &Accounts,
    id: u64,
    list: Raw<AirdropList>,
    guaranteed_until_unix_timestamp: i64,
    metadata: Text,
) -> Res {
    check_new_vault(&a.airdrop_collateral, &a.airdrop, &a.collateral_mint)?;
    let number = id.to_le_bytes();
    let bump = check_pda(&a.airdrop, &[AIRDROP_SEED, &number], a.program)?;
    let seeds: [&[u8]; 3] = [AIRDROP_SEED, &number, &[bump]];
    create_pda_account(&a.payer, &a.airdrop, &a.system_program, a.program, Airdrop::SIZE, &seeds)?;
    let mint = a.collateral_mint.key();
    let mut airdrop = Airdrop::write(&a.airdrop, bump, id, a.authority.key(), mint)?;
    airdrop.set_list(&list)?;
    airdrop.set_guaranteed_until(guaranteed_until_unix_timestamp);
    airdrop.set_metadata(metadata.0)?;
    token::create_associated(
        &a.payer,
        &a.airdrop_collateral,
        &a.airdrop,
        &a.collateral_mint,
        &a.system_program,
        &a.token_program,
        &a.associated_token_program,
    )
}
