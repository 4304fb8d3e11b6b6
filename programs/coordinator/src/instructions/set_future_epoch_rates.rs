use crate::accounts::set_future_epoch_rates::Accounts;
use psyche_common::Res;

pub fn process(
    a: &Accounts,
    earning_rate_total_shared: Option<u64>,
    slashing_rate_per_client: Option<u64>,
) -> Res {
    let c = super::load_as_owner(&a.authority, &a.instance, &a.coordinator_account, a.program)?;
    let old = c.future_rates;
    let earning = earning_rate_total_shared.unwrap_or(old.earning_rate_total_shared);
    let slashing = slashing_rate_per_client.unwrap_or(old.slashing_rate_per_client);
    c.future_rates.earning_rate_total_shared = earning;
    c.future_rates.slashing_rate_per_client = slashing;
    c.bump_nonce_if(earning != old.earning_rate_total_shared || slashing != old.slashing_rate_per_client);
    Ok(())
}
