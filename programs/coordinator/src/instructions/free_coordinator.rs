use crate::accounts::free_coordinator::Accounts;
use crate::error::Error;
use psyche_common::Res;

pub fn process(a: &Accounts) -> Res {
    let coordinator = super::load_as_owner(&a.authority, &a.instance, &a.coordinator_account, a.program)?;
    if !coordinator.is_halted() {
        return Err(Error::CloseCoordinatorNotHalted.into());
    }
    a.coordinator_account.close(&a.spill)?;
    a.instance.close(&a.spill)
}
