use crate::accounts::init_coordinator::Accounts;
use crate::error::Error;
use crate::state::{
    CoordinatorAccount, Instance, ACCOUNT_SIZE, DISCRIMINATOR, INSTANCE_SEED, INSTANCE_SIZE, MAX_RUN_ID,
    VERSION,
};
use psyche_common::system::{check_pda, create_pda_account};
use psyche_common::{Common, Key, Res, Text};

pub fn process(
    a: &Accounts,
    main_authority: &'static Key,
    join_authority: &'static Key,
    run_id: Text,
    client_version: Text,
) -> Res {
    check_run_id(run_id.0)?;
    a.coordinator_account.check_owner(a.program)?;
    if a.coordinator_account.len() != ACCOUNT_SIZE {
        return Err(Error::CoordinatorAccountIncorrectSize.into());
    }
    if a.coordinator_account.data()[..8] != [0; 8] {
        return Err(Common::AlreadyInitialized.into());
    }
    let bump = check_pda(&a.instance, &[INSTANCE_SEED, run_id.0], a.program)?;
    create_pda_account(
        &a.payer,
        &a.instance,
        &a.system_program,
        a.program,
        INSTANCE_SIZE,
        &[INSTANCE_SEED, run_id.0, &[bump]],
    )?;
    let account = a.coordinator_account.key();
    Instance::write(&a.instance, bump, main_authority, join_authority, account, run_id.0)?;

    let coordinator = unsafe { &mut *a.coordinator_account.data_ptr().cast::<CoordinatorAccount>() };
    coordinator.discriminator = DISCRIMINATOR;
    coordinator.version = VERSION;
    coordinator.run_id[..run_id.0.len()].copy_from_slice(run_id.0);
    coordinator.next_active = 1;
    super::update_client_version::set(coordinator, client_version)?;
    Ok(())
}

/// 1 to 32 bytes of UTF-8. A zero byte would make two runs whose padded ids are equal.
fn check_run_id(run_id: &[u8]) -> Res {
    let fits = (1..=MAX_RUN_ID).contains(&run_id.len());
    if fits && !run_id.contains(&0) && core::str::from_utf8(run_id).is_ok() {
        Ok(())
    } else {
        Err(Error::RunIdInvalidLength.into())
    }
}
