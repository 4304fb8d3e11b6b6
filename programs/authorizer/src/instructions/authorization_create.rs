use crate::accounts::authorization_create::Accounts;
use crate::error::Error;
use crate::state::{size, Authorization, MAX_SCOPE, SEED};
use psyche_common::system::{check_pda, create_pda_account};
use psyche_common::{sys, Key, Res, Text};

pub fn process(a: &Accounts, grantee: &'static Key, scope: Text) -> Res {
    if scope.0.len() > MAX_SCOPE {
        return Err(Error::ScopeTooLong.into());
    }
    let grantor = a.grantor.key();
    let bump = check_pda(&a.authorization, &[SEED, grantor, grantee, scope.0], a.program)?;
    let space = size(scope.0.len(), 0);
    create_pda_account(
        &a.payer,
        &a.authorization,
        &a.system_program,
        a.program,
        space,
        &[SEED, grantor, grantee, scope.0, &[bump]],
    )?;
    let now = sys::clock()?.unix_timestamp;
    Authorization::write(&a.authorization, bump, grantor, grantee, scope.0, now)
}
