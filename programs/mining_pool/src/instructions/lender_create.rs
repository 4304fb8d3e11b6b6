use crate::accounts::lender_create::Accounts;
use crate::state::{Lender, Pool, LENDER_SEED};
use psyche_common::system::{check_pda, create_pda_account};
use psyche_common::Res;

pub fn process(a: &Accounts) -> Res {
    Pool::load(&a.pool, a.program)?;
    let (pool, user) = (a.pool.key(), a.user.key());
    let bump = check_pda(&a.lender, &[LENDER_SEED, pool, user], a.program)?;
    create_pda_account(
        &a.payer,
        &a.lender,
        &a.system_program,
        a.program,
        Lender::SIZE,
        &[LENDER_SEED, pool, user, &[bump]],
    )?;
    Lender::write(&a.lender, bump)
}
