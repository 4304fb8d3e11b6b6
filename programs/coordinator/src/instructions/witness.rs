use crate::accounts::witness::Accounts;
use crate::error::Error;
use crate::state::{
    get_bit, run_state, CoordinatorAccount, Witness, WitnessMetadata, MAX_CLIENTS, MAX_WITNESSES,
};
use psyche_common::{Raw, Res};

#[allow(clippy::too_many_arguments)]
pub fn process(
    a: &Accounts,
    index: u16,
    step: u32,
    participants: [u64; 4],
    broadcast_bloom: [u64; 16],
    broadcast_merkle: &'static [u8; 32],
    state_digest: &'static [u8; 32],
    _metadata: Raw<WitnessMetadata>,
) -> Res {
    let (c, entry) = super::load_as_client(&a.user, &a.instance, &a.coordinator_account, a.program)?;
    if c.is_halted() {
        return Err(Error::Halted.into());
    }
    if !matches!(c.run_state, run_state::ROUND_TRAIN | run_state::ROUND_WITNESS) {
        return Err(Error::InvalidRunState.into());
    }
    check_elected(c, entry, index as usize, step)?;
    check_participants(c, &participants)?;
    let round = c.epoch_state.current_mut();
    if round.stored_witnesses().iter().any(|witness| witness.index == index) {
        return Err(Error::DuplicateWitness.into());
    }
    let number = round.num_witnesses as usize;
    if number >= MAX_WITNESSES {
        return Err(Error::WitnessesFull.into());
    }
    round.witnesses[number] = Witness {
        index,
        pad0: 0,
        pad1: 0,
        participants,
        broadcast_bloom,
        broadcast_merkle: *broadcast_merkle,
        state_digest: *state_digest,
    };
    round.num_witnesses += 1;
    super::finish(&a.coordinator_account, c, true)
}

/// The step binds a witness to its round: one held back and delivered later attests nothing.
fn check_elected(c: &CoordinatorAccount, entry: usize, index: usize, step: u32) -> Res {
    let round = c.epoch_state.current();
    let known = step == round.step
        && index < MAX_CLIENTS
        && c.epoch_state.clients().get(index).is_some_and(|client| client.entry as usize == entry)
        && get_bit(&round.elected, index);
    if known {
        Ok(())
    } else {
        Err(Error::InvalidWitness.into())
    }
}

/// Nobody can be seen taking part who was not in the previous round.
fn check_participants(c: &CoordinatorAccount, participants: &[u64; 4]) -> Res {
    let possible = match c.epoch_state.earlier(1) {
        Some(previous) if previous.apply_only == 0 => previous.healthy,
        _ => [0; 4],
    };
    if participants.iter().zip(possible).any(|(seen, can)| seen & !can != 0) {
        return Err(Error::InvalidWitness.into());
    }
    Ok(())
}
