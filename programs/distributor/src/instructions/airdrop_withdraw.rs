use crate::accounts::airdrop_withdraw::Accounts;
use crate::collateral::Payment;
use crate::error::Error;
use crate::state::Airdrop;
use psyche_common::{sys, Res};

pub fn process(a: &Accounts, collateral_amount: u64) -> Res {
    let airdrop = Airdrop::load(&a.airdrop, a.program)?;
    airdrop.check_authority(&a.authority)?;
    let payment = Payment {
        airdrop: &a.airdrop,
        airdrop_collateral: &a.airdrop_collateral,
        collateral_mint: &a.collateral_mint,
        to: &a.recipient_collateral,
        token_program: &a.token_program,
    };
    let (vault, _) = payment.check(&airdrop)?;
    let left = vault.checked_sub(collateral_amount).ok_or(Error::ParamsCollateralAmountIsTooLarge)?;
    if left < airdrop.reserved() && airdrop.is_guaranteed(sys::clock()?.unix_timestamp) {
        return Err(Error::AirdropIsGuaranteed.into());
    }
    payment.pay(&airdrop, collateral_amount)
}
