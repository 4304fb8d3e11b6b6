//! One instruction per file.
pub mod announce;
pub mod checkpoint;
pub mod free_coordinator;
pub mod health_check;
pub mod init_coordinator;
pub mod join_run;
pub mod leave_run;
pub mod migrate;
pub mod record_claim;
pub mod remove_unauthorized;
pub mod set_future_epoch_rates;
pub mod set_paused;
pub mod settle_debt;
pub mod tick;
pub mod update;
pub mod update_client_version;
pub mod verdict;
pub mod vote;
pub mod warmup_witness;
pub mod witness;

use crate::error::Error;
use crate::event::{DisputeOpened, DisputeSettled, Transition};
use crate::rules::{dispute, transition};
use crate::state::{client_state, dispute_state, CoordinatorAccount, Dispute, Instance, MAX_DISPUTES};
use psyche_common::{sys, Account, Key, Res};

/// The run of an owner's instruction: the signer must be its main authority.
fn load_as_owner(
    authority: &Account,
    instance: &Account,
    coordinator_account: &Account,
    program: &Key,
) -> Res<&'static mut CoordinatorAccount> {
    Instance::load(instance, coordinator_account, program)?.check_authority(authority)?;
    CoordinatorAccount::load(coordinator_account, program)
}

/// The run of anybody's instruction.
fn load(
    instance: &Account,
    coordinator_account: &Account,
    program: &Key,
) -> Res<&'static mut CoordinatorAccount> {
    Instance::load(instance, coordinator_account, program)?;
    CoordinatorAccount::load(coordinator_account, program)
}

/// The run of a client's instruction, and the client's entry.
fn load_as_client(
    user: &Account,
    instance: &Account,
    coordinator_account: &Account,
    program: &Key,
) -> Res<(&'static mut CoordinatorAccount, usize)> {
    let coordinator = load(instance, coordinator_account, program)?;
    let entry = coordinator.find_entry(user.key()).ok_or(Error::SignerNotAClient)?;
    Ok((coordinator, entry))
}

/// Unix seconds on the chain's clock.
fn now() -> Res<u64> {
    Ok(sys::clock()?.unix_timestamp.max(0) as u64)
}

/// What an instruction may change and has to tell of.
struct Before {
    run_state: u8,
    epoch: u16,
    is_open: [bool; MAX_DISPUTES],
}

impl Before {
    fn of(c: &CoordinatorAccount) -> Before {
        Before {
            run_state: c.run_state,
            epoch: c.progress.epoch,
            is_open: c.disputes.each_ref().map(dispute::is_open),
        }
    }
}

/// Ticks, and moves the nonce when this or the instruction before it `changed` anything.
fn finish(account: &Account, coordinator: &mut CoordinatorAccount, changed: bool) -> Res {
    let before = Before::of(coordinator);
    let ticked = if coordinator.is_halted() {
        false
    } else {
        let clock = sys::clock()?;
        let hash = sys::newest_slot_hash()?;
        let digest = sys::sha256(&[&clock.unix_timestamp.to_le_bytes(), &clock.slot.to_le_bytes(), &hash]);
        let mut first = [0u8; 8];
        first.copy_from_slice(&digest[..8]);
        transition::tick(coordinator, clock.unix_timestamp.max(0) as u64, u64::from_le_bytes(first))
    };
    coordinator.bump_nonce_if(changed || ticked);
    if ticked {
        emit_transition(account, coordinator, before.run_state);
    }
    emit_settled(account, coordinator, &before);
    Ok(())
}

/// Tells of each dispute that was open `before` and is settled now.
fn emit_settled(account: &Account, c: &CoordinatorAccount, before: &Before) {
    for (d, was_open) in c.disputes.iter().zip(before.is_open) {
        if !was_open || dispute::is_open(d) || d.state == dispute_state::FREE {
            continue;
        }
        DisputeSettled {
            coordinator_account: *account.key(),
            nonce: c.nonce,
            epoch: before.epoch,
            height: d.height,
            evidence_hash: d.evidence_hash,
            accuser: wallet(c, d.accuser),
            trainer: wallet(c, d.trainer),
            state: d.state,
            reason: d.reason,
            num_guilty: dispute::count_votes(d, true) as u8,
            num_not_guilty: dispute::count_votes(d, false) as u8,
            slashed: dispute::slashed_points(c, d),
        }
        .emit();
    }
}

fn emit_opened(account: &Account, c: &CoordinatorAccount, d: &Dispute) {
    DisputeOpened {
        coordinator_account: *account.key(),
        nonce: c.nonce,
        epoch: c.progress.epoch,
        height: d.height,
        evidence_hash: d.evidence_hash,
        accuser: wallet(c, d.accuser),
        trainer: wallet(c, d.trainer),
        reason: d.reason,
    }
    .emit();
}

/// Of an epoch client.
fn wallet(c: &CoordinatorAccount, index: u16) -> Key {
    c.entries[c.epoch_state.clients[index as usize].entry as usize].signer
}

/// A client may be addressed in one of these ways; 0 is not at all.
const MAX_HINT_KIND: u8 = 3;

fn check_hint(address_hint: &[u8; 64]) -> Res {
    if address_hint[0] > MAX_HINT_KIND {
        return Err(Error::InvalidAddressHint.into());
    }
    Ok(())
}

/// Tells those who follow the run that it has left state `from`.
fn emit_transition(account: &Account, c: &CoordinatorAccount, from: u8) {
    Transition {
        coordinator_account: *account.key(),
        nonce: c.nonce,
        epoch: c.progress.epoch,
        step: c.progress.step,
        height: c.epoch_state.current().height,
        from,
        to: c.run_state,
        unix_timestamp: c.run_state_start_unix_timestamp as i64,
    }
    .emit();
}

/// Whether the epoch client `index` is Healthy and has this entry.
fn is_healthy_client(coordinator: &CoordinatorAccount, index: usize, entry: usize) -> bool {
    coordinator
        .epoch_state
        .clients()
        .get(index)
        .is_some_and(|client| client.entry as usize == entry && client.state == client_state::HEALTHY)
}
