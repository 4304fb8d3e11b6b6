//! What the coordinator's account says about a run's points.
use crate::error::Error;
use psyche_common::{ids, Account, Common, Failure, Key, Res};
use psyche_coordinator_state::{run_state, CoordinatorAccount};

/// First of the error codes that all programs share.
const FIRST_COMMON: u64 = 6100;

/// The account, checked by its own program's rules.
pub fn load(coordinator_account: &Account) -> Res<&'static CoordinatorAccount> {
    match CoordinatorAccount::load(coordinator_account, &ids::COORDINATOR) {
        Ok(coordinator) => Ok(coordinator),
        Err(Failure(code)) if code >= FIRST_COMMON => Err(Failure(code)),
        // the coordinator's own codes mean something else in this program
        Err(_) => Err(Common::WrongAccount.into()),
    }
}

/// Points that `user` may still be paid for; none if it has no entry.
pub fn get_claimable(coordinator: &CoordinatorAccount, user: &Key) -> u64 {
    coordinator.find_entry(user).map_or(0, |number| coordinator.entries[number].claimable())
}

/// Points that `user` owes for having been slashed; none if it has no entry.
pub fn get_debt(coordinator: &CoordinatorAccount, user: &Key) -> u64 {
    coordinator.find_entry(user).map_or(0, |number| coordinator.entries[number].debt())
}

/// Whether `user` is a client of the running epoch, whatever its state there, or has joined the next one.
pub fn is_engaged(coordinator: &CoordinatorAccount, user: &Key) -> bool {
    let Some(number) = coordinator.find_entry(user) else { return false };
    if coordinator.is_halted() {
        return false;
    }
    let is_pending = coordinator.entries[number].active == coordinator.next_active;
    is_pending || (coordinator.is_in_epoch() && coordinator.find_epoch_client(number).is_some())
}

/// Points that anybody may still be paid for. A sum beyond a u64 promises more than any vault can hold.
pub fn get_promised(coordinator: &CoordinatorAccount) -> u64 {
    coordinator.entries().iter().fold(0, |sum: u64, entry| sum.saturating_add(entry.claimable()))
}

/// Checks that the run is over; returns since when, in Unix seconds. Nothing leaves that state, so the time
/// never changes.
pub fn check_finished(coordinator: &CoordinatorAccount) -> Res<u64> {
    if coordinator.run_state == run_state::FINISHED {
        Ok(coordinator.run_state_start_unix_timestamp)
    } else {
        Err(Error::RunNotFinished.into())
    }
}
