use crate::accounts::claim_create::Accounts;
use crate::state::{Airdrop, Claim, CLAIM_SEED};
use psyche_common::system::{check_pda, create_pda_account};
use psyche_common::Res;

pub fn process(a: &Accounts, nonce: u64) -> Res {
    Airdrop::load(&a.airdrop, a.program)?;
    let (airdrop, claimer, number) = (a.airdrop.key(), a.claimer.key(), nonce.to_le_bytes());
    let bump = check_pda(&a.claim, &[CLAIM_SEED, airdrop, claimer, &number], a.program)?;
    let seeds: [&[u8]; 5] = [CLAIM_SEED, airdrop, claimer, &number, &[bump]];
    create_pda_account(&a.payer, &a.claim, &a.system_program, a.program, Claim::SIZE, &seeds)?;
    let data = a.claim.data_mut();
    data[..8].copy_from_slice(&Claim::DISCRIMINATOR);
    data[8] = bump;
    Ok(())
}
